// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package extension builds the filters of WasmPlugins, which name a configuration, and the
// configurations, which Envoy requests by name (ECDS). All functions are pure.
//
// The configuration is addressed to the agent beside Envoy, in the format of Istio's control
// plane: a remote module with environment variables that start with ISTIO_META_ and describe how
// to pull it. The agent fetches the module and passes a local file to Envoy. Neither snapshots nor
// the configurations contain docker configs. They contain a reference, which [WithPullSecret]
// replaces.
package extension
