// The files of a model that is no folder of the file system, as a sealed one. Whoever has them fills memory
// with them; what is in them it need not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace redoubt {

class ModelFiles {
 public:
  virtual ~ModelFiles() = default;
  // How messages name a file.
  virtual std::string path(const std::string& name) const = 0;
  // Throws if there is no such file.
  virtual size_t bytes(const std::string& name) const = 0;
  // Fills `to` with a range of the file. Any thread may call it, several at once. Throws if it can't.
  virtual void read(const std::string& name, size_t begin, uint8_t* to, size_t bytes) const = 0;
};

}  // namespace redoubt
