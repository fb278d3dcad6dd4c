// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
)

// Plugins are the filters of the user's that a connection manager gets, by where
// they stand among those of the mesh, in the order in which a request meets them;
// nil is none.
type Plugins map[extensionsv1alpha1.PluginPhase][]*hcmv3.HttpFilter
