"""Files and folders of any content: JSON, safetensors headers, folders that appear whole, free space, the cache."""
