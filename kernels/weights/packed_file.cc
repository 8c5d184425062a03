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

void check_file_size(const std::string& path, size_t bytes) {
  if (bytes >= 10) return;
  throw PackedFileError(path, "too short for a safetensors file: " + std::to_string(bytes) + " bytes");
}

// The bytes before the data section. length: of the header, kLengthBytes, the beginning of a file of `size`
// bytes.
uint64_t data_begin_of(const std::string& path, const uint8_t* length, size_t size) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, length, kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    throw PackedFileError(path, "header of " + std::to_string(header_bytes) + " bytes is too large");
  }
  if (header_bytes > size - kLengthBytes) {
    throw PackedFileError(path, "header reaches past the end of the file");
  }
  return kLengthBytes + header_bytes;
}

Json parse_header(const std::string& path, std::string_view text) {
  Json header;
  try {
    header = Json::parse(text);
  } catch (const JsonError& error) {
    throw PackedFileError(path, std::string("header: ") + error.what());
  }
  if (header.object() == nullptr) throw PackedFileError(path, "header is not a JSON object");
  return header;
}

// The header's JSON of a file of `size` bytes. Throws what `read` throws, too.
std::string header_text(const std::string& path, size_t size, const ReadRange& read) {
  check_file_size(path, size);
  uint8_t length[kLengthBytes];
  read(0, length, kLengthBytes);
  std::string text(data_begin_of(path, length, size) - kLengthBytes, '\0');
  read(kLengthBytes, reinterpret_cast<uint8_t*>(text.data()), text.size());
  return text;
}

ReadRange range_reader(const ModelFiles& files, const std::string& name) {
  return [&files, name](size_t begin, uint8_t* to, size_t bytes) { files.read(name, begin, to, bytes); };
}

// A string of the metadata, after a check that this is a packed model of today's layout.
std::string metadata_of(const std::string& path, const Json& header, const char* key) {
  const Json* metadata = header.find("__metadata__");
  if (metadata == nullptr || metadata->object() == nullptr) {
    throw PackedFileError(path, "no __metadata__: not a packed model");
  }
  const auto field = [&](const char* name) {
    const Json* value = metadata->find(name);
    return value == nullptr || value->string() == nullptr ? std::string() : *value->string();
  };
  if (field("format") != "redoubt-packed") {
    throw PackedFileError(
        path, "format is " + quoted_or(metadata->find("format"), "missing") + ", not 'redoubt-packed'");
  }
  if (field("layout_version") == "1") {
    throw PackedFileError(path,
                          "layout_version is '1', which does not say how to compute the model; this takes"
                          " seconds and keeps every weight: redoubt convert OLD_FOLDER NEW_FOLDER");
  }
  if (field("layout_version") != "2") {
    throw PackedFileError(path, "layout_version is " +
                                    quoted_or(metadata->find("layout_version"), "missing") +
                                    "; this version of Redoubt reads '2': convert the model again");
  }
  return field(key);
}

}  // namespace

std::string read_description(const std::string& path) {
  const FileDescriptor file(path);
  const std::string text = header_text(path, size_t(file.size()), range_reader(file.get()));
  return metadata_of(path, parse_header(path, text), "decoder");
}

std::string read_description(const ModelFiles& files, const std::string& name) {
  const std::string path = files.path(name);
  const std::string text = header_text(path, files.bytes(name), range_reader(files, name));
  return metadata_of(path, parse_header(path, text), "decoder");
}

PackedFile::PackedFile(const std::string& path, WeightMemory wanted, size_t other_bytes, ThreadPool& pool,
                       const ThreadNodes& nodes, bool bind)
    : path_(path) {
  const FileDescriptor file(path_);
  size_ = size_t(file.size());
  check_file_size(path_, size_);
  bytes_ = map_file(file.get(), size_);
  if (bytes_ == nullptr) throw std::system_error(errno, std::generic_category(), "can't map " + path_);
  try {
    data_begin_ = data_begin_of(path_, bytes_, size_);
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
  size_ = files.bytes(name);
  const ReadRange read = range_reader(files, name);
  const std::string header = header_text(path_, size_, read);
  data_begin_ = kLengthBytes + header.size();
  read_header(header);
  memory_ = require_weight_copy(wanted, {.file_bytes = size_,
                                         .other_bytes = other_bytes,
                                         .mapped_huge_bytes = 0,
                                         .bound_nodes = bound_nodes(),
                                         .root = ""});
  copy(read, pool, nodes, bind);
}

PackedFile::~PackedFile() { unmap(); }

void PackedFile::unmap() {
  if (bytes_ != copied_.data()) munmap(const_cast<uint8_t*>(bytes_), size_);
  bytes_ = nullptr;
}

void PackedFile::release() const {
  if (memory_ == WeightMemory::kMapped) madvise(const_cast<uint8_t*>(bytes_), size_, MADV_DONTNEED);
}

void PackedFile::copy(const ReadRange& read, ThreadPool& pool, const ThreadNodes& nodes, bool bind) {
  unmap();  // first, as there may not be memory for both
  std::vector<SliceSource> sources;
  for (const auto& [name, tensor] : tensors_) {
    const auto matrix = matrices_.find(name);
    const size_t tiles = matrix == matrices_.end() ? 0 : size_t(matrix->second.tiles());
    const size_t bytes = (tensor.end - tensor.begin) / tensor.stacked;
    for (size_t i = 0; i < tensor.stacked; ++i) {
      sources.push_back({.file_begin = data_begin_ + tensor.begin + i * bytes,
                         .bytes = bytes,
                         .tiles = int(tiles / tensor.stacked)});
    }
  }
  const SlicePlan plan = plan_slices(sources, size_, nodes);
  copied_ = read_to_huge_pages(read, plan, nodes, bind, pool);
  bytes_ = copied_.data();
  size_t source = 0;
  for (auto& [name, tensor] : tensors_) {
    for (size_t i = 0; i < tensor.stacked; ++i, ++source) {
      const std::vector<size_t>& by_node = plan.begins[source];
      tensor.copied_at.insert(tensor.copied_at.end(), by_node.begin(), by_node.end());
    }
  }
}

void PackedFile::read_header(std::string_view text) {
  const Json header = parse_header(path_, text);
  for (const auto& [name, entry] : *header.object()) {
    if (name != "__metadata__") tensors_.emplace(name, read_tensor(name, entry));
  }
  check_coverage();
  read_matrices(metadata_of(path_, header, "matrices"));
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

void PackedFile::read_matrices(std::string_view text) {
  Json matrices;
  try {
    matrices = Json::parse(text);
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

  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail(name, "missing");
  Tensor& tensor = found->second;
  if (tensor.dtype != "U8") fail(name, "is " + tensor.dtype + ", not U8");
  const std::vector<uint64_t> shape = {uint64_t(matrix.tiles()), matrix.tile_bytes()};
  if (tensor.shape != shape) {
    fail(name, "its shape is not [" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) +
                   "], as its type, rows, cols and group demand");
  }
  check_aligned(name, tensor);
  if (entry.find("count") != nullptr) {
    tensor.stacked = uint64_t(dimension("count"));
    const uint64_t whole_tiles = uint64_t(rows) / kTileOutputs;
    if (tensor.stacked < 1 || rows % kTileOutputs != 0 || whole_tiles % tensor.stacked != 0) {
      fail(name, "its rows are not those of `count` matrices of whole tiles");
    }
  }
  matrices_.emplace(name, matrix);
}

void PackedFile::check_aligned(const std::string& name, const Tensor& tensor) const {
  if ((data_begin_ + tensor.begin) % kAlignmentBytes != 0)
    fail(name, "does not start at a multiple of 64 bytes");
}

// index: of the stacked matrices.
const uint8_t* PackedFile::data(const Tensor& tensor, uint64_t index, int node) const {
  if (tensor.copied_at.empty()) {
    return bytes_ + data_begin_ + tensor.begin + index * ((tensor.end - tensor.begin) / tensor.stacked);
  }
  const size_t nodes = tensor.copied_at.size() / tensor.stacked;
  return bytes_ + tensor.copied_at[index * nodes + size_t(node)];
}

const PackedFile::Tensor& PackedFile::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) fail(name, "missing");
  return it->second;
}

const PackedMatrix& PackedFile::described(const std::string& name, int64_t rows, int64_t cols,
                                          uint64_t stacked) const {
  const auto it = matrices_.find(name);
  if (it == matrices_.end()) fail(name, has(name) ? "is not described in matrices" : "missing");
  if (it->second.rows != rows || it->second.cols != cols) {
    fail(name, "is " + std::to_string(it->second.rows) + " x " + std::to_string(it->second.cols) +
                   ", but the description demands " + std::to_string(rows) + " x " + std::to_string(cols));
  }
  if (find(name).stacked != stacked) {
    fail(name, "has " + std::to_string(find(name).stacked) + " matrices, but the description demands " +
                   std::to_string(stacked));
  }
  return it->second;
}

PackedMatrix PackedFile::matrix(const std::string& name, int32_t rows, int32_t cols, int node) const {
  PackedMatrix matrix = described(name, rows, cols, 1);
  matrix.data = data(find(name), 0, node);
  return matrix;
}

std::vector<PackedMatrix> PackedFile::stack(const std::string& name, int32_t count, int32_t rows,
                                            int32_t cols, int node) const {
  const PackedMatrix whole = described(name, int64_t(count) * rows, cols, uint64_t(count));
  const Tensor& tensor = find(name);
  std::vector<PackedMatrix> matrices(size_t(count), whole);
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].rows = rows;
    matrices[i].data = data(tensor, i, node);
  }
  return matrices;
}

const float* PackedFile::vector(const std::string& name, int32_t length) const {
  const Tensor& tensor = find(name);
  if (tensor.dtype != "F32") fail(name, "is " + tensor.dtype + ", not F32");
  if (tensor.shape != std::vector<uint64_t>{uint64_t(length)}) {
    fail(name, "its shape is not [" + std::to_string(length) + "], as the description demands");
  }
  check_aligned(name, tensor);
  return reinterpret_cast<const float*>(data(tensor, 0, 0));
}

}  // namespace redoubt
