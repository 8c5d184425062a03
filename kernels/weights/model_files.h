// The files of a model that is not a folder, such as a sealed one. The implementation fills memory with their
// bytes and need not know what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace redoubt {

class ModelFiles {
 public:
  virtual ~ModelFiles() = default;
  // The file's name in messages.
  virtual std::string path(const std::string& name) const = 0;
  // Size in bytes. Throws if there is no such file.
  virtual size_t bytes(const std::string& name) const = 0;
  // Fills `to` with a range of the file. Thread-safe. Throws on failure.
  virtual void read(const std::string& name, size_t begin, uint8_t* to, size_t bytes) const = 0;
};

}  // namespace redoubt
