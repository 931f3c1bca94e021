"""Find deformable attention that is written as GridSamples, a Concat, a Mul and a ReduceSum."""
