// RUN: %reshard-opt %s --import-gspmd --split-input-file --verify-diagnostics
// RUN: %reshard-opt %s --import-gspmd --split-input-file --no-remarks -o %t
// RUN: diff %s %t

// Modules that keep their GSPMD shardings, all of them, and what the reason is.

// expected-remark @+1 {{the module keeps its GSPMD shardings, and no site of it is found: Shardy has no counterpart of {maximal device=1} for an array}}
func.func @on_one_device(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}, %arg1: tensor<8xf32> {mhlo.sharding = "{maximal device=1}"}) {
  return
}

// -----

func.func @shard_group(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<8xf32> {
  // expected-remark @+1 {{Shardy has no counterpart of a shard group (shard_as)}}
  %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{unknown shard_as 0}"} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// expected-remark @+1 {{dimension 0 of argument 0 of type tensor<7xf32> does not divide into 2 shards; GSPMD pads it, Shardy would shard it otherwise}}
func.func @uneven_argument(%arg0: tensor<7xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
  return
}

// -----

// expected-remark @+1 {{shardings for 2 and 4 devices in one module}}
func.func @different_numbers_of_devices(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}, %arg1: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
  return
}

// -----

sdy.mesh @mesh = <["x"=2]>
// expected-remark @+1 {{it has Shardy's shardings too, and XLA looks at these alone}}
func.func @both_kinds(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}, %arg1: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  return
}

// -----

// expected-remark @+1 {{sharding {manual} is outside of a region between SPMDFullToShardShape and SPMDShardToFullShape}}
func.func @manual_argument(%arg0: tensor<8xf32> {mhlo.sharding = "{manual}"}, %arg1: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
  return
}

// -----

func.func @a_tile_leaves(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%arg0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
  // expected-remark @+1 {{a tile leaves the block other than through SPMDShardToFullShape}}
  return %0 : tensor<4xf32>
}

// -----

func.func @an_array_comes_in(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}, %arg1: tensor<4xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%arg0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
  // expected-remark @+1 {{it works on a tile and on a value that is none}}
  %1 = stablehlo.add %0, %arg1 : tensor<4xf32>
  %2 = stablehlo.custom_call @SPMDShardToFullShape(%1) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// -----

func.func @unknown_before_a_region(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  // expected-remark @+1 {{nothing states the sharding of its operand}}
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%arg0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

func.func @no_tile_of_it(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<8xf32> {
  // expected-remark @+1 {{tensor<2xf32> is no tile of tensor<8xf32> that is sharded [{"axis_0"}]}}
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%arg0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<2xf32>
  %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<2xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

func.func @two_meshes(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[8]<=[8]}"}) -> tensor<8xf32> {
  // expected-remark @+1 {{its tiles are of shardings that no one mesh expresses}}
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%arg0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<1xf32>
  %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[8]7,6,5,4,3,2,1,0}"} : (tensor<1xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

!pair = tuple<tensor<8xf32>, tensor<8xf32>>
func.func @tuples(%arg0: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> !pair {
  // expected-remark @+1 {{2 shardings for 1 values}}
  %0 = stablehlo.tuple %arg0, %arg0 {mhlo.sharding = "{{replicated}, {devices=[2]<=[2]}}"} : !pair
  return %0 : !pair
}
