// The safetensors container (github.com/huggingface/safetensors, "Format") with Redoubt's metadata.
// Everything that a file says is checked here, before anything is used; after that a view can't leave its
// bytes.
#include "weights/packed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <vector>

#include "machine/numa.h"
#include "weights/json.h"
#include "weights/pack.h"

namespace redoubt {
namespace {

constexpr uint64_t kMaxHeaderBytes = 16 << 20;  // a hundred times what 80 layers need
constexpr off_t kMaxTextBytes = 16 << 20;
constexpr uint64_t kAlignmentBytes = 64;
constexpr size_t kLengthBytes = sizeof(uint64_t);  // of the header's length, the file's first bytes

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // not blocking: a pipe must not hang us
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "can't open " + path);
    struct stat info;
    if (fstat(fd_, &info) != 0) {
      const int error = errno;
      close(fd_);
      throw std::system_error(error, std::generic_category(), "can't read " + path);
    }
    if (!S_ISREG(info.st_mode)) {
      close(fd_);
      throw PackedFileError(path, "not a regular file");
    }
    size_ = info.st_size;
  }
  ~FileDescriptor() { close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  off_t size() const { return size_; }

 private:
  int fd_;
  off_t size_ = 0;
};

// Bytes of an element of a safetensors dtype; 0 if unknown.
uint64_t dtype_bytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "U8" || dtype == "I8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E5M2") return 1;
  return 0;
}

bool unsigned_integer(const Json* json, uint64_t& out) {
  const int64_t* value = json == nullptr ? nullptr : json->integer();
  if (value == nullptr || *value < 0) return false;
  out = uint64_t(*value);
  return true;
}

// A weight type's table. What is no array of integers gives a table of one entry, which is refused later.
std::vector<int64_t> table_entries(const Json* json) {
  std::vector<int64_t> entries;
  if (json == nullptr) return entries;
  if (json->array() == nullptr) return {0};
  for (const Json& item : *json->array()) {
    if (item.integer() == nullptr) return {0};
    entries.push_back(*item.integer());
  }
  return entries;
}

std::string quoted_or(const Json* json, const char* otherwise) {
  const std::string* text = json == nullptr ? nullptr : json->string();
  return text == nullptr ? otherwise : "'" + *text + "'";
}

}  // namespace

std::string read_text_file(const std::string& path) {
  const FileDescriptor file(path);
  if (file.size() > kMaxTextBytes) throw PackedFileError(path, "larger than 16 MiB");
  std::string text(size_t(file.size()), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = read(file.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), "can't read " + path);
    if (got == 0) break;
    have += size_t(got);
  }
  text.resize(have);
  return text;
}

std::string read_text_file(const ModelFiles& files, const std::string& name) {
  const size_t bytes = files.bytes(name);
  if (bytes > size_t(kMaxTextBytes)) throw PackedFileError(files.path(name), "larger than 16 MiB");
  std::string text(bytes, '\0');
  files.read(name, 0, reinterpret_cast<uint8_t*>(text.data()), bytes);
  return text;
}

PackedFile::PackedFile(const std::string& path, WeightMemory wanted, size_t other_bytes, ThreadPool& pool,
                       const ThreadNodes& nodes, bool bind)
    : path_(path) {
  const FileDescriptor file(path_);
  set_size(size_t(file.size()));
  bytes_ = map_file(file.get(), size_);
  if (bytes_ == nullptr) throw std::system_error(errno, std::generic_category(), "can't map " + path_);
  try {
    set_data_begin(bytes_);
    read_header({reinterpret_cast<const char*>(bytes_) + kLengthBytes, data_begin_ - kLengthBytes});
    if (wanted != WeightMemory::kHugePages) populate_mapping(bytes_, size_, pool);
    memory_ = choose_weight_memory(wanted, {.file_bytes = size_,
                                            .other_bytes = other_bytes,
                                            .mapped_huge_bytes = huge_bytes_of_mapping(bytes_),
                                            .bound_nodes = bound_nodes(),
                                            .root = ""});
    if (memory_ == WeightMemory::kHugePages) copy(range_reader(file.get()), pool, nodes, bind);
  } catch (...) {
    unmap();
    throw;
  }
}

PackedFile::PackedFile(const ModelFiles& files, const std::string& name, WeightMemory wanted,
                       size_t other_bytes, ThreadPool& pool, const ThreadNodes& nodes, bool bind)
    : path_(files.path(name)) {
  set_size(files.bytes(name));
  uint8_t length[kLengthBytes];
  files.read(name, 0, length, kLengthBytes);
  set_data_begin(length);
  std::string header(data_begin_ - kLengthBytes, '\0');
  files.read(name, kLengthBytes, reinterpret_cast<uint8_t*>(header.data()), header.size());
  read_header(header);
  memory_ = require_weight_copy(wanted, {.file_bytes = size_,
                                         .other_bytes = other_bytes,
                                         .mapped_huge_bytes = 0,
                                         .bound_nodes = bound_nodes(),
                                         .root = ""});
  copy([&](size_t begin, uint8_t* to, size_t bytes) { files.read(name, begin, to, bytes); }, pool, nodes,
       bind);
}

PackedFile::~PackedFile() { unmap(); }

void PackedFile::unmap() {
  if (bytes_ != copied_.data()) munmap(const_cast<uint8_t*>(bytes_), size_);
  bytes_ = nullptr;
}

void PackedFile::copy(const ReadRange& read, ThreadPool& pool, const ThreadNodes& nodes, bool bind) {
  unmap();  // first, as there may not be memory for both
  std::vector<SliceSource> sources;
  for (const auto& [name, tensor] : tensors_) {
    const auto matrix = matrices_.find(name);
    sources.push_back({.file_begin = data_begin_ + tensor.begin,
                       .bytes = tensor.end - tensor.begin,
                       .tiles = matrix == matrices_.end() ? 0 : matrix->second.tiles()});
  }
  const SlicePlan plan = plan_slices(sources, size_, nodes);
  copied_ = read_to_huge_pages(read, plan, nodes, bind, pool);
  bytes_ = copied_.data();
  size_t i = 0;
  for (auto& [name, tensor] : tensors_) tensor.copied_at = plan.begins[i++];
}

void PackedFile::set_size(size_t bytes) {
  if (bytes < 10) fail("too short for a safetensors file: " + std::to_string(bytes) + " bytes");
  size_ = bytes;
}

// length: of the header, kLengthBytes.
void PackedFile::set_data_begin(const uint8_t* length) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, length, kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    fail("header of " + std::to_string(header_bytes) + " bytes is too large");
  if (header_bytes > size_ - kLengthBytes) fail("header reaches past the end of the file");
  data_begin_ = kLengthBytes + header_bytes;
}

void PackedFile::read_header(std::string_view text) {
  Json header;
  try {
    header = Json::parse(text);
  } catch (const JsonError& error) {
    fail(std::string("header: ") + error.what());
  }
  if (header.object() == nullptr) fail("header is not a JSON object");
  for (const auto& [name, entry] : *header.object()) {
    if (name != "__metadata__") tensors_.emplace(name, read_tensor(name, entry));
  }
  check_coverage();
  read_metadata(header.find("__metadata__"));
}

PackedFile::Tensor PackedFile::read_tensor(const std::string& name, const Json& entry) const {
  Tensor tensor;
  const Json* dtype = entry.find("dtype");
  if (dtype == nullptr || dtype->string() == nullptr) fail(name, "no dtype");
  tensor.dtype = *dtype->string();
  uint64_t expected = dtype_bytes(tensor.dtype);
  if (expected == 0) fail(name, "unknown dtype '" + tensor.dtype + "'");

  const Json* shape = entry.find("shape");
  if (shape == nullptr || shape->array() == nullptr || shape->array()->size() > 8) fail(name, "no shape");
  for (const Json& item : *shape->array()) {
    uint64_t size = 0;
    if (!unsigned_integer(&item, size)) fail(name, "shape is not made of sizes");
    if (__builtin_mul_overflow(expected, size, &expected)) fail(name, "shape overflows");
    tensor.shape.push_back(size);
  }

  const Json* offsets = entry.find("data_offsets");
  if (offsets == nullptr || offsets->array() == nullptr || offsets->array()->size() != 2 ||
      !unsigned_integer(&(*offsets->array())[0], tensor.begin) ||
      !unsigned_integer(&(*offsets->array())[1], tensor.end)) {
    fail(name, "data_offsets is not a pair of offsets");
  }
  if (tensor.begin > tensor.end) fail(name, "begins after its end");
  if (tensor.end > size_ - data_begin_) fail(name, "reaches past the end of the file");
  if (tensor.end - tensor.begin != expected) {
    fail(name, "has " + std::to_string(tensor.end - tensor.begin) + " bytes, but its shape and dtype need " +
                   std::to_string(expected));
  }
  return tensor;
}

// safetensors demands that tensors cover the data section without gap or overlap.
void PackedFile::check_coverage() const {
  std::vector<std::pair<const Tensor*, const std::string*>> in_order;
  for (const auto& [name, tensor] : tensors_) in_order.emplace_back(&tensor, &name);
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  uint64_t end = 0;
  for (const auto& [tensor, name] : in_order) {
    if (tensor->begin < end) fail(*name, "overlaps the tensor before it");
    if (tensor->begin > end) fail(*name, "has a gap before it");
    end = tensor->end;
  }
  if (end != size_ - data_begin_) fail("bytes after the last tensor");
}

void PackedFile::read_metadata(const Json* metadata) {
  if (metadata == nullptr || metadata->object() == nullptr) fail("no __metadata__: not a packed model");
  const auto field = [&](const char* key) {
    const Json* value = metadata->find(key);
    return value == nullptr || value->string() == nullptr ? std::string() : *value->string();
  };
  if (field("format") != "redoubt-packed") {
    fail("format is " + quoted_or(metadata->find("format"), "missing") + ", not 'redoubt-packed'");
  }
  if (field("layout_version") != "1") {
    fail("layout_version is " + quoted_or(metadata->find("layout_version"), "missing") +
         "; this version of Redoubt reads '1': convert the model again");
  }
  Json matrices;
  try {
    matrices = Json::parse(field("matrices"));
  } catch (const JsonError& error) {
    fail(std::string("matrices: ") + error.what());
  }
  if (matrices.object() == nullptr) fail("matrices is not a JSON object");
  for (const auto& [name, entry] : *matrices.object()) add_matrix(name, entry);
}

void PackedFile::add_matrix(const std::string& name, const Json& entry) {
  const Json* type = entry.find("type");
  if (type == nullptr || type->string() == nullptr) fail(name, "no weight type");
  const auto dimension = [&](const char* key) {
    uint64_t value = 0;
    if (!unsigned_integer(entry.find(key), value)) fail(name, std::string("no ") + key);
    return int64_t(value);
  };
  const int64_t rows = dimension("rows"), cols = dimension("cols"), group = dimension("group");
  PackedMatrix matrix;
  try {
    matrix.type = weight_type_from_name(*type->string());
    check_packable(matrix.type, rows, cols, group);
    set_table(matrix, table_entries(entry.find("table")));
  } catch (const std::invalid_argument& error) {
    fail(name, error.what());
  }
  matrix.rows = int32_t(rows);
  matrix.cols = int32_t(cols);
  matrix.group = int32_t(group);

  const Tensor& tensor = find(name);
  if (tensor.dtype != "U8") fail(name, "is " + tensor.dtype + ", not U8");
  const std::vector<uint64_t> shape = {uint64_t(matrix.tiles()), matrix.tile_bytes()};
  if (tensor.shape != shape) {
    fail(name, "its shape is not [" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) +
                   "], as its type, rows, cols and group demand");
  }
  check_aligned(name, tensor);
  matrices_.emplace(name, matrix);
}

void PackedFile::check_aligned(const std::string& name, const Tensor& tensor) const {
  if ((data_begin_ + tensor.begin) % kAlignmentBytes != 0)
    fail(name, "does not start at a multiple of 64 bytes");
}

const uint8_t* PackedFile::data(const Tensor& tensor, int node) const {
  return bytes_ + (tensor.copied_at.empty() ? data_begin_ + tensor.begin : tensor.copied_at[size_t(node)]);
}

const PackedFile::Tensor& PackedFile::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) fail(name, "missing");
  return it->second;
}

PackedMatrix PackedFile::matrix(const std::string& name, int32_t rows, int32_t cols, int node) const {
  const auto it = matrices_.find(name);
  if (it == matrices_.end()) fail(name, has(name) ? "is not described in matrices" : "missing");
  if (it->second.rows != rows || it->second.cols != cols) {
    fail(name, "is " + std::to_string(it->second.rows) + " x " + std::to_string(it->second.cols) +
                   ", but config.json demands " + std::to_string(rows) + " x " + std::to_string(cols));
  }
  PackedMatrix matrix = it->second;
  matrix.data = data(find(name), node);
  return matrix;
}

const float* PackedFile::vector(const std::string& name, int32_t length) const {
  const Tensor& tensor = find(name);
  if (tensor.dtype != "F32") fail(name, "is " + tensor.dtype + ", not F32");
  if (tensor.shape != std::vector<uint64_t>{uint64_t(length)}) {
    fail(name, "its shape is not [" + std::to_string(length) + "], as config.json demands");
  }
  check_aligned(name, tensor);
  return reinterpret_cast<const float*>(data(tensor, 0));
}

}  // namespace redoubt
