"""The compiled core: the operators as machine code, compiled by Numba and cached on disk.

- ``jit_core``: the core: runs kernels on arrays, with helper threads
- ``library_kernels``, ``core_compiler``: where the core has its kernels from: a library, or Numba
- ``library_file``: the trailer of a library, and which library this process uses
- ``structs``, ``program_codes``: the layouts of kernels, launches, workers and tasks, and the
  codes of programs that compute a grid
- ``workers``: the plan and the progress of a launch, and the work of a thread
- ``packing``: whether and how X is packed in panels
- ``tiles``, ``scratch``: the scratch memory of a worker, and the table of a tile
- ``kernel_factories``: the kernels for each type and mode
- ``tap_plans``: how the taps of each mode are computed with each padding
- ``axis_vectors``, ``lanes``: the taps on an axis, in vectors with NumPy's operators and
  functions
- ``tap_table``, ``tap_sums``: computes the table of taps, and reads X through it
- ``vector_sampling``: samples without a table
- ``simd``, ``simd_sums``, ``llvm_helpers``: vectors, as LLVM instructions
- ``halves``: conversion of float16 and bfloat16
- ``attention``: deformable attention
- ``helper_threads``: threads that share a task with its owner
- ``pointers``, ``c_symbols``: addresses, memory, locks and C functions in compiled code
- ``compilation``, ``code_library``, ``target``: compiles functions to C function pointers, for
  this machine or another one
- ``measured``: what is measured once per machine
- ``kernel_key``: the code that a kernel contains, as the key of the kernel on disk
- ``cache_folder``, ``kernel_lock``: the folder of compiled kernels, and the lock by which only
  one process compiles a kernel
"""
