// Puts a tier's kernels of this folder in the table: one list for all tiers. Included inside the tier's
// namespace, and outside its target region, because tables of all tiers are filled on every processor.

inline void fill_ops(KernelTable& table) {
  table.rms_norm = rms_norm;
  table.layer_norm = layer_norm;
  table.activate[size_t(Activation::kSilu)] = activate<Activation::kSilu>;
  table.activate[size_t(Activation::kGeluTanh)] = activate<Activation::kGeluTanh>;
  table.activate[size_t(Activation::kGeluErf)] = activate<Activation::kGeluErf>;
  table.activate[size_t(Activation::kRelu)] = activate<Activation::kRelu>;
  table.activate[size_t(Activation::kRelu2)] = activate<Activation::kRelu2>;
  table.activate[size_t(Activation::kSwigluOai)] = activate<Activation::kSwigluOai>;
  table.add_scaled = add_scaled;
  table.convolve_gated = convolve_gated;
  table.scale = scale;
  table.softcap = softcap;
  table.gate_by_sigmoid = gate_by_sigmoid;
  table.rope = rope;
  table.write_kv = write_kv;
  table.block_maxima = block_maxima;
  table.softmax_weights = softmax_weights;
}
