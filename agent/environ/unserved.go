// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package environ

import (
	"slices"
	"strconv"
	"time"
)

// unservedVariable is a variable of pilot-agent, of some version, that is not
// read here. A value that would have an effect causes a warning at the start.
// docs/compatibility.md has a row for each.
type unservedVariable struct {
	name string
	// nothing are the values that ask for nothing, or for what is done anyway.
	nothing []string
	// instead is what to use, a sentence; empty while it is not served yet.
	instead string
}

// asksForNothing tells whether a value makes no difference.
func (v unservedVariable) asksForNothing(value string) bool {
	return slices.ContainsFunc(v.nothing, func(known string) bool { return sameValue(known, value) })
}

// sameValue tells whether two texts are the same bool, duration or word.
func sameValue(a, b string) bool {
	if x, err := strconv.ParseBool(a); err == nil {
		y, err := strconv.ParseBool(b)
		return err == nil && x == y
	}
	if x, err := time.ParseDuration(a); err == nil {
		y, err := time.ParseDuration(b)
		return err == nil && x == y
	}
	return a == b
}

// unservedVariables are the variables that are not read.
func unservedVariables() []unservedVariable {
	off, on := []string{"false"}, []string{"true"}
	return []unservedVariable{
		{name: "XDS_AUTH_PROVIDER"},
		{name: "HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED", nothing: on, instead: "Envoy no longer has this switch and always cuts fragments off paths; remove it"},
		{name: "ISTIO_GPRC_MAXSTREAMS", nothing: []string{"100000"}, instead: "Envoy needs one stream, and gRPC's own limit applies; remove it"},
		{name: "ISTIO_GPRC_MAXRECVMSGSIZE", nothing: []string{"4194304"}, instead: "the size of Envoy's messages is not limited; remove it"},
		{name: "PILOT_XDS_SEND_TIMEOUT", nothing: []string{"0s"}, instead: "keepalive ends streams that hang, see GRPC_KEEPALIVE_INTERVAL and GRPC_KEEPALIVE_TIMEOUT"},
		{name: "XDS_AUTH", nothing: on, instead: "the permissions of the sockets, 0660, decide who may open them; remove it"},
		{name: "PILOT_PARTIAL_FULL_PUSHES", nothing: on, instead: "only secrets that changed are sent; remove it"},
		// Names of other versions.
		{name: "PEER_METADATA_DISCOVERY", nothing: off, instead: "only Istio's build of Envoy has this extension; remove it"},
		{name: "TERMINATION_DRAIN_DURATION_SECONDS", nothing: []string{"5"}, instead: "use terminationDrainDuration of ProxyConfig, such as 5s"},
		{name: "PROXY_XDS_VIA_AGENT", nothing: on, instead: "Envoy always reaches the control plane through the agent; remove it"},
		{name: "SKIP_PARSE_TOKEN", nothing: on, instead: "tokens are sent as they are and never parsed; remove it"},
		{name: "SECRET_ROTATION_CHECK_INTERVAL", instead: "use SECRET_GRACE_PERIOD_RATIO: certificates are renewed at a computed time, without periodic checks"},
		{name: "OUTPUT_KEY_CERT_TO_DIRECTORY", instead: "use OUTPUT_CERTS"},
		{name: "SECRET_GRACE_PERIOD_RATIO_JITTER", nothing: []string{"0.01"}, instead: "the time of renewal is always spread by a tenth; use SECRET_GRACE_PERIOD_RATIO for the middle"},
	}
}
