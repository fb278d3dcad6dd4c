// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package capture redirects the TCP connections, and if desired the DNS queries, of a network
// namespace to Envoy. It replaces istio-iptables and istio-clean-iptables of Istio's pilot-agent:
// flags, environment variables and the effect of the rules are the same. The agent's program calls
// it.
//
// [Settings.Rules] makes one list of rules for each family of addresses. They are applied with
// nftables over netlink in one transaction, without other programs, or where that is asked for or
// needed with iptables-restore. What istio-iptables or another kind of rules left is found, reported
// and removed; rules of others are never changed. The package runs no goroutines beyond its calls.
package capture
