// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/server"
)

// environment is what the control plane reads from its environment, once.
type environment struct {
	server.Config
	gogc string
}

// variable is one row of the table of environment variables, which is also
// the source of docs/reference/env-control.md.
type variable struct {
	name  string
	value string // default, as text
	doc   string
	set   func(e *environment, text string) error
}

func text(field func(*environment) *string) func(*environment, string) error {
	return func(e *environment, s string) error { *field(e) = s; return nil }
}

func duration(field func(*environment) *time.Duration) func(*environment, string) error {
	return func(e *environment, s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return fmt.Errorf("%q is no duration: write for example 100ms or 24h", s)
		}
		*field(e) = d
		return nil
	}
}

func boolean(field func(*environment) *bool) func(*environment, string) error {
	return func(e *environment, s string) error {
		on, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		*field(e) = on
		return nil
	}
}

// variables is the one place that knows the environment.
func variables() []variable {
	return slices.Concat([]variable{
		{"POD_NAMESPACE", "istio-system", "namespace of the control plane: part of the names in its own certificate, and with Kubernetes where its Secret and leases are; --namespace wins", text(func(e *environment) *string { return &e.Namespace })},
		{"REVISION", "default", "revision of the control plane: an object of a cluster with another value of the label istio.io/rev is left out", text(func(e *environment) *string { return &e.Revision })},
		{"OUTRIGGER_STATE_DIR", "", "directory of the self-signed certificate authority, and of what is known about replaced roots; --stateDir wins (default: with Kubernetes none, they are in the Secret istio-ca-secret; else ./var/lib/outrigger/ca)", text(func(e *environment) *string { return &e.StateDir })},
		{"PILOT_CERT_PROVIDER", server.CertProviderIstiod, "what makes the control plane's own certificate: istiod is its authority, custom somebody else, who puts it into files (see --tlsCertFile, which wins)", certProvider},
		{"ISTIOD_CUSTOM_HOST", "", "more DNS names or addresses for the control plane's own certificate, with commas between", text(func(e *environment) *string { return &e.CustomHosts })},
		{"PILOT_DEBOUNCE_AFTER", "100ms", "quiet time that ends a burst of changes; a change after it goes out at once", duration(func(e *environment) *time.Duration { return &e.DebounceAfter })},
		{"PILOT_DEBOUNCE_MAX", "10s", "how long a burst of changes is gathered at most", duration(func(e *environment) *time.Duration { return &e.DebounceMax })},
		{"PILOT_PUSH_THROTTLE", "", "connections that are prepared for a push at a time (default: one for each processor)", func(e *environment, s string) error {
			if s == "" {
				e.PushWorkers = runtime.GOMAXPROCS(0)
				return nil
			}
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no number of connections: write 1 or more", s)
			}
			e.PushWorkers = n
			return nil
		}},
		{"PILOT_CANARY_PUSH", "true", "a change of listeners, clusters or routes goes to one proxy of each scope first, and to the others when it took it, or after a second; what it rejects the others never get", boolean(func(e *environment) *bool { return &e.CanaryPush })},
		{"PILOT_SCOPE_GATEWAY_TO_NAMESPACE", "false", "Gateways select proxies of their own namespace only", boolean(func(e *environment) *bool { return &e.Generate.ScopeGateways })},
		{"PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", "false", "proxies with the role router get only the clusters that their routes lead to", boolean(func(e *environment) *bool { return &e.Generate.FilterGatewayClusters })},
		{"ISTIO_DEFAULT_REQUEST_TIMEOUT", "0s", "timeout of requests whose route sets none; 0s is none", duration(func(e *environment) *time.Duration { return &e.Generate.RequestTimeout })},
		{"OUTRIGGER_VHDS", "true", "virtual hosts as resources of their own for Envoys that speak delta; false sends them inside the routes", boolean(func(e *environment) *bool { return &e.VHDS })},
		{"GRPC_KEEPALIVE_INTERVAL", "30s", "how long a connection is silent before it is probed; --keepaliveInterval wins", duration(func(e *environment) *time.Duration { return &e.Keepalive.Interval })},
		{"GRPC_KEEPALIVE_TIMEOUT", "10s", "how long a probe may take before the connection counts as dead; --keepaliveTimeout wins", duration(func(e *environment) *time.Duration { return &e.Keepalive.Timeout })},
		{"GOGC", "", "garbage collection of Go; empty means 60", text(func(e *environment) *string { return &e.gogc })},
	}, callerVariables(), kubernetesVariables(), remoteVariables(), credentialVariables(), authorityVariables(), signerVariables(), statusVariables(), mcpVariables(), registerVariables(), debugVariables(), gatewayAPIVariables(), replicaVariables(), meshVariables(), limitVariables(), denyVariables())
}

// read reads every variable of the table.
func (e *environment) read() error { return e.readFrom(os.Getenv) }

// readFrom reads the variables with a function. A value that cannot be read is an
// error: a control plane that runs with other settings than those that were
// written down is worse than one that does not start.
func (e *environment) readFrom(getenv func(string) string) error {
	for _, v := range variables() {
		s := getenv(v.name)
		if s == "" {
			s = v.value
		}
		if err := v.set(e, s); err != nil {
			return fmt.Errorf("environment variable %s: %w", v.name, err)
		}
	}
	return nil
}

// writeEnvironmentDoc writes docs/reference/env-control.md.
func writeEnvironmentDoc(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Environment of outrigger-control\n\nMade from the table in `cmd/outrigger-control/env.go` by `make generate`.\n\n| variable | default | meaning |\n|---|---|---|\n")
	for _, v := range variables() {
		value := v.value
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.name, value, v.doc)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
