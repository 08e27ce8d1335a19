// RUN: %reshard-opt %s --convert-to-local=products=least-time --topology=v5e:2x4 --split-input-file | FileCheck %s
// RUN: %reshard-opt %s --convert-to-local --topology=v5e:2x4 --split-input-file | FileCheck %s --check-prefix=FOUND

// Products are split in the way that takes least time, with the conversions of what they take and make.

sdy.mesh @mesh = <["x"=8]>

// Propagation takes the columns of the right operand, and gathers the left one. To turn the right operand and to add up
// the small result takes less.
// CHECK-LABEL: func.func @a_small_result_is_added_up(
// CHECK-NOT: stablehlo.all_gather
// CHECK: stablehlo.all_to_all
// CHECK: stablehlo.dot_general
// CHECK-SAME: (tensor<64x1024xf32>, tensor<1024x64xf32>) -> tensor<64x64xf32>
// CHECK: stablehlo.reduce_scatter
// FOUND-LABEL: func.func @a_small_result_is_added_up(
// FOUND: stablehlo.all_gather
// FOUND: stablehlo.dot_general
// FOUND-SAME: (tensor<64x8192xf32>, tensor<8192x8xf32>) -> tensor<64x8xf32>
func.func @a_small_result_is_added_up(
    %arg0: tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<8192x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x8192xf32>, tensor<8192x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}

// -----

sdy.mesh @mesh = <["x"=8]>

// The result is large, so nothing is added up.
// CHECK-LABEL: func.func @a_large_result_is_split_by_columns(
// CHECK: stablehlo.all_to_all
// CHECK: stablehlo.dot_general
// CHECK-SAME: -> tensor<256x1024xf32>
// CHECK-NOT: stablehlo.reduce_scatter
// CHECK: sdy.return
func.func @a_large_result_is_split_by_columns(
    %arg0: tensor<256x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %arg1: tensor<64x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<256x8192xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<256x64xf32>, tensor<64x8192xf32>) -> tensor<256x8192xf32>
  return %0 : tensor<256x8192xf32>
}

// -----

sdy.mesh @mesh = <["data"=4, "model"=2]>

// Both operands have columns split by "model". What three products share is gathered, once, though each of the others is
// narrower; each result is made where it is wanted.
// CHECK-LABEL: func.func @gradients_of_weights_share_what_is_gathered(
// CHECK: %[[WHOLE:.*]] = "stablehlo.all_gather"(%[[X:arg[0-9]+]])
// CHECK-SAME: (tensor<1024x512xbf16>) -> tensor<1024x1024xbf16>
// CHECK: stablehlo.dot_general %[[WHOLE]], %{{.*}} -> tensor<1024x192xbf16>
// CHECK: stablehlo.reduce_scatter
// CHECK: stablehlo.dot_general %[[WHOLE]], %{{.*}} -> tensor<1024x192xbf16>
// CHECK: stablehlo.reduce_scatter
// CHECK: stablehlo.dot_general %[[WHOLE]], %{{.*}} -> tensor<1024x192xbf16>
// CHECK: stablehlo.reduce_scatter
// CHECK-NOT: stablehlo.{{all_gather|collective_permute|all_to_all}}
// CHECK: sdy.return
func.func @gradients_of_weights_share_what_is_gathered(
    %x: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
    %q: tensor<4096x384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
    %k: tensor<4096x384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
    %v: tensor<4096x384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>})
    -> (tensor<1024x384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
        tensor<1024x384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
        tensor<1024x384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}) {
  %0 = stablehlo.dot_general %x, %q, contracting_dims = [0] x [0]
      : (tensor<4096x1024xbf16>, tensor<4096x384xbf16>) -> tensor<1024x384xbf16>
  %1 = stablehlo.dot_general %x, %k, contracting_dims = [0] x [0]
      : (tensor<4096x1024xbf16>, tensor<4096x384xbf16>) -> tensor<1024x384xbf16>
  %2 = stablehlo.dot_general %x, %v, contracting_dims = [0] x [0]
      : (tensor<4096x1024xbf16>, tensor<4096x384xbf16>) -> tensor<1024x384xbf16>
  return %0, %1, %2 : tensor<1024x384xbf16>, tensor<1024x384xbf16>, tensor<1024x384xbf16>
}

// -----

sdy.mesh @mesh = <["data"=4, "model"=2]>

// The other product of what the first one takes sums up the split columns, so it does not share a gather of them: the
// first one gathers the narrower operand, and turns its small result.
// CHECK-LABEL: func.func @a_product_that_sums_up_shares_no_gather(
// CHECK: "stablehlo.all_gather"
// CHECK-SAME: (tensor<4096x320xbf16>) -> tensor<4096x640xbf16>
// CHECK-NOT: "stablehlo.all_gather"
// CHECK: sdy.return
func.func @a_product_that_sums_up_shares_no_gather(
    %x: tensor<16384x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
    %k: tensor<16384x640xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
    %w: tensor<1024x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>})
    -> (tensor<1024x640xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
        tensor<16384x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
  %0 = stablehlo.dot_general %x, %k, contracting_dims = [0] x [0]
      : (tensor<16384x1024xbf16>, tensor<16384x640xbf16>) -> tensor<1024x640xbf16>
  %1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<16384x1024xbf16>, tensor<1024x64xbf16>) -> tensor<16384x64xbf16>
  return %0, %1 : tensor<1024x640xbf16>, tensor<16384x64xbf16>
}
