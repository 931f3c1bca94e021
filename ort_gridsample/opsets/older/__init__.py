"""Write the nodes of a model in an older opset.

onnx's version converter compares signatures where it has no adapter, so it keeps nodes whose
meaning changed. This package converts node by node instead, at any depth of If, Loop and Scan. A
node goes down one version of its operator at a time. At each version, in this order:

1. a rule of :data:`.rules.CONVERSION_RULES` rewrites the node;
2. the node is kept if the older version of the operator computes the same (:mod:`.signature_fit`);
3. the node is replaced by the body that ONNX defines for its operator;
4. the node is recorded as an obstacle (:mod:`.obstacles`).

The rules are functions of a :class:`.step.VersionStep`, in one module for each family of operators:
:mod:`.axes`, :mod:`.shapes`, :mod:`.dtypes`, :mod:`.normalization` and :mod:`.other_rules`.
"""
