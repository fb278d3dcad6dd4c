// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package environ

// captureVariables are the rows of the table about interception. istio-iptables and
// istio-clean-iptables read most of them. Variables that are named after a flag have no row.
func captureVariables() []variable {
	elsewhere := func(*Values, string) error { return nil }
	return []variable{
		{"OUTRIGGER_REQUIRE_INTERCEPTION", kindBool, "false", "end with exit code 126 if connections are not redirected to Envoy, of a sidecar with the interception mode REDIRECT or TPROXY; without it a warning is logged if ISTIO_META_INTERCEPTION_MODE is set. Set ENVOY_PORT and INBOUND_CAPTURE_PORT, too, if Envoy's ports are not 15001 and 15006", boolean(func(e *Values) *bool { return &e.RequireInterception })},
		{"ENVOY_USER", kindText, "istio-proxy", "`istio-iptables`: user whose connections are not captured, without --proxy-uid", elsewhere},
		{"ISTIO_OUTBOUND_OWNER_GROUPS", kindText, "*", "`istio-iptables`: groups whose outbound connections are captured, names or numbers with commas between; * means all", elsewhere},
		{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", kindText, "", "`istio-iptables`: groups whose outbound connections are not captured, if all others are", elsewhere},
		{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", kindText, "127.0.0.1/32", "`istio-iptables`: loopback addresses by which the workload reaches itself without Envoy", elsewhere},
		{"INVALID_DROP", kindBool, "false", "`istio-iptables`: default of --drop-invalid", elsewhere},
		{"ISTIO_AGENT_DUAL_STACK", kindBool, "false", "`istio-iptables`: default of --dual-stack, as ISTIO_DUAL_STACK", elsewhere},
		{"IPTABLES_TRACE_LOGGING", kindBool, "false", "`istio-iptables`: default of --iptables-trace-logging", elsewhere},
		{"DRY_RUN_FILE_PATH", kindPath, "", "`istio-iptables`: file that --dry-run also writes the rules to", elsewhere},
		{"INBOUND_INTERCEPTION_MODE", kindText, "", "`istio-clean-iptables`: accepted, the rules of all modes are removed", elsewhere},
		{"INBOUND_TPROXY_MARK", kindNumber, "1337", "`istio-clean-iptables`: default of --istio-inbound-tproxy-mark", elsewhere},
	}
}
