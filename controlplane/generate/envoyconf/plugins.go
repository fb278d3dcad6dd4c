// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
)

// Plugins are the user-defined filters of a connection manager by phase, which determines their
// position among the filters of the mesh. Each list is in the order in which its filters process a
// request. Nil means none.
type Plugins map[extensionsv1alpha1.PluginPhase][]*hcmv3.HttpFilter
