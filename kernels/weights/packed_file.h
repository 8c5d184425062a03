// The one reader of a packed model's weights: validates the safetensors header once, maps the file or reads
// it into memory, and from then on only returns views. Knows nothing of layers: the caller says which sizes
// the configuration demands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "contract/packed_matrix.h"
#include "machine/aligned_memory.h"
#include "machine/thread_pool.h"
#include "weights/model_files.h"
#include "weights/node_slices.h"
#include "weights/weight_memory.h"

namespace redoubt {

class Json;

// A packed model that is not what it claims to be.
class PackedFileError : public std::runtime_error {
 public:
  PackedFileError(const std::string& file, const std::string& reason)
      : std::runtime_error(file + ": " + reason) {}
  PackedFileError(const std::string& file, const std::string& tensor, const std::string& reason)
      : std::runtime_error(file + ": tensor '" + tensor + "': " + reason) {}
};

// The description of the decoder in the file's header: JSON, not checked here (model/config.h). Reads the
// header alone. Throws what PackedFile throws of it.
std::string read_description(const std::string& path);
std::string read_description(const ModelFiles& files, const std::string& name);

class PackedFile {
 public:
  // Opens `path` and takes it into `wanted` memory, with the pool's threads: a copy is cut into the nodes'
  // slices, each bound to its node if `bind`. The process will take other_bytes besides. Throws
  // PackedFileError for every way in which the file can be wrong, std::invalid_argument for memory that can't
  // be had, std::system_error from the OS.
  PackedFile(const std::string& path, WeightMemory wanted, size_t other_bytes, ThreadPool& pool,
             const ThreadNodes& nodes, bool bind);
  // The same for the file `name` of `files`, which is copied in any case. Throws what they throw, too.
  PackedFile(const ModelFiles& files, const std::string& name, WeightMemory wanted, size_t other_bytes,
             ThreadPool& pool, const ThreadNodes& nodes, bool bind);
  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  const std::string& path() const { return path_; }
  size_t bytes() const { return size_; }
  // kMapped or kHugePages.
  WeightMemory memory() const { return memory_; }
  bool has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  // The packed matrix of that name and shape, in place, for the threads of a node, which may read their own
  // tiles only. Throws PackedFileError.
  PackedMatrix matrix(const std::string& name, int32_t rows, int32_t cols, int node) const;
  // The same of `count` matrices of one shape that the file has as one, their rows one after another.
  std::vector<PackedMatrix> stack(const std::string& name, int32_t count, int32_t rows, int32_t cols,
                                  int node) const;
  // The F32 vector of that name and length, in place. Throws PackedFileError.
  const float* vector(const std::string& name, int32_t length) const;
  // Leaves a mapped file to the system's page cache until it is read again. A copy stays.
  void release() const;

 private:
  struct Tensor {
    std::string dtype;
    std::vector<uint64_t> shape;
    uint64_t begin = 0;  // in the data section
    uint64_t end = 0;
    uint64_t stacked = 1;  // matrices that it holds; each is cut by nodes for itself
    // In copied_, by stacked matrix, then by node (SlicePlan::begins); empty where the file is mapped.
    std::vector<size_t> copied_at;
  };
  [[noreturn]] void fail(const std::string& reason) const { throw PackedFileError(path_, reason); }
  [[noreturn]] void fail(const std::string& tensor, const std::string& reason) const {
    throw PackedFileError(path_, tensor, reason);
  }
  void unmap();
  void copy(const ReadRange& read, ThreadPool& pool, const ThreadNodes& nodes, bool bind);
  void read_header(std::string_view text);
  Tensor read_tensor(const std::string& name, const Json& entry) const;
  void check_coverage() const;
  void read_matrices(std::string_view text);
  void add_matrix(const std::string& name, const Json& entry);
  void check_aligned(const std::string& name, const Tensor& tensor) const;
  const PackedMatrix& described(const std::string& name, int64_t rows, int64_t cols, uint64_t stacked) const;
  const uint8_t* data(const Tensor& tensor, uint64_t index, int node) const;
  const Tensor& find(const std::string& name) const;

  std::string path_;
  WeightMemory memory_ = WeightMemory::kMapped;
  const uint8_t* bytes_ = nullptr;  // the file as it is mapped, or copied_
  AlignedMemory<uint8_t> copied_;
  size_t size_ = 0;
  uint64_t data_begin_ = 0;  // bytes before the data section
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, PackedMatrix, std::less<>> matrices_;  // without their data
};

}  // namespace redoubt
