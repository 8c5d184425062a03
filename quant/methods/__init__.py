"""Ways to choose the codes of one matrix, behind one interface (`problem.Method`)."""
