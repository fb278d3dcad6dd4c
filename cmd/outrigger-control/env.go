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

// environment are the settings of the control plane, read from its environment once.
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
			return fmt.Errorf("%q is not a duration: write for example 100ms or 24h", s)
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

// negated is boolean for a field that is true when the variable is false.
func negated(field func(*environment) *bool) func(*environment, string) error {
	return func(e *environment, s string) error {
		on := false
		err := boolean(func(*environment) *bool { return &on })(e, s)
		*field(e) = !on
		return err
	}
}

// variables returns the table of all environment variables. Nothing else reads them.
func variables() []variable {
	return slices.Concat([]variable{
		{"POD_NAMESPACE", "istio-system", "namespace of the control plane: part of the names in its own certificate and, with Kubernetes, the namespace of its Secret and leases; --namespace overrides it", text(func(e *environment) *string { return &e.Namespace })},
		{"REVISION", "default", "revision of the control plane: objects of a cluster with another value of the label istio.io/rev are ignored", text(func(e *environment) *string { return &e.Revision })},
		{"OUTRIGGER_STATE_DIR", "", "directory of the self-signed certificate authority and of its replaced roots; --stateDir overrides it (default: none with Kubernetes, which has them in the Secret istio-ca-secret; else ./var/lib/outrigger/ca)", text(func(e *environment) *string { return &e.StateDir })},
		{"PILOT_CERT_PROVIDER", server.CertProviderIstiod, "who issues the control plane's own certificate: istiod means its certificate authority, custom means that it is in files (see --tlsCertFile, which overrides it)", certProvider},
		{"ISTIOD_CUSTOM_HOST", "", "additional DNS names or addresses for the control plane's own certificate, comma-separated", text(func(e *environment) *string { return &e.CustomHosts })},
		{"PILOT_DEBOUNCE_AFTER", "100ms", "quiet time that ends a burst of changes; the next change is pushed at once", duration(func(e *environment) *time.Duration { return &e.DebounceAfter })},
		{"PILOT_DEBOUNCE_MAX", "10s", "longest time for which a burst of changes is collected", duration(func(e *environment) *time.Duration { return &e.DebounceMax })},
		{"PILOT_PUSH_THROTTLE", "", "number of connections that are prepared for a push concurrently (default: one for each processor)", func(e *environment, s string) error {
			if s == "" {
				e.PushWorkers = runtime.GOMAXPROCS(0)
				return nil
			}
			return count(func(e *environment) *int { return &e.PushWorkers })(e, s)
		}},
		{"PILOT_CANARY_PUSH", "true", "a change of listeners, clusters or routes is sent to one proxy of each group first, and to the others once it has accepted it, or after a second; what it rejects is not sent to the others", boolean(func(e *environment) *bool { return &e.CanaryPush })},
		{"PILOT_SCOPE_GATEWAY_TO_NAMESPACE", "false", "Gateways select only proxies in their own namespace", boolean(func(e *environment) *bool { return &e.Generate.GatewaysOwnNamespace })},
		{"PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", "false", "proxies with the role router receive only the clusters that their routes refer to", boolean(func(e *environment) *bool { return &e.Generate.FilterGatewayClusters })},
		{"PILOT_ENABLE_QUIC_LISTENERS", "false", "gateways also serve HTTP/3, at the UDP ports of servers with the protocol HTTPS and the mode SIMPLE", boolean(func(e *environment) *bool { return &e.Generate.HTTP3 })},
		{"PILOT_ENABLE_MONGO_FILTER", "true", "Envoy counts the operations on ports of the protocol Mongo", negated(func(e *environment) *bool { return &e.Generate.Protocols.PlainMongo })},
		{"PILOT_ENABLE_REDIS_FILTER", "false", "Envoy sends each command on outbound ports of the protocol Redis to the endpoint that the hash of its key selects", boolean(func(e *environment) *bool { return &e.Generate.Protocols.Redis })},
		{"PILOT_ENABLE_MYSQL_FILTER", "false", "stock Envoy has no filter for MySQL: true reports the ports of the protocol MySQL, which are forwarded as TCP", boolean(func(e *environment) *bool { return &e.Generate.Protocols.MySQL })},
		{"PILOT_ENABLE_PERSISTENT_SESSION_FILTER", "false", "the labels istio.io/persistent-session and istio.io/persistent-session-header of services keep the requests of a client at one endpoint", boolean(func(e *environment) *bool { return &e.Generate.Sessions })},
		{"ISTIO_DEFAULT_REQUEST_TIMEOUT", "0s", "timeout of requests whose route sets none; 0s means no timeout", duration(func(e *environment) *time.Duration { return &e.Generate.RequestTimeout })},
		{"OUTRIGGER_VHDS", "true", "sends virtual hosts as separate resources to Envoys with delta xDS; false sends them inside the routes", boolean(func(e *environment) *bool { return &e.VHDS })},
		{"GRPC_KEEPALIVE_INTERVAL", "30s", "idle time after which a connection is probed; --keepaliveInterval overrides it", duration(func(e *environment) *time.Duration { return &e.Keepalive.Interval })},
		{"GRPC_KEEPALIVE_TIMEOUT", "10s", "time to wait for the answer to a probe before closing the connection; --keepaliveTimeout overrides it", duration(func(e *environment) *time.Duration { return &e.Keepalive.Timeout })},
		{"GOGC", "", "target percentage of Go's garbage collector; empty means 60", text(func(e *environment) *string { return &e.gogc })},
	}, callerVariables(), kubernetesVariables(), remoteVariables(), credentialVariables(), authorityVariables(), signerVariables(), statusVariables(), mcpVariables(), registerVariables(), debugVariables(), gatewayAPIVariables(), replicaVariables(), meshVariables(), limitVariables(), managerVariables(), denyVariables(), keySetVariables())
}

// emptyTurnsOff returns the variables with a default that are read as they are when they are set to
// an empty value. An empty value of any other variable means its default, as manifests often have
// empty values.
func emptyTurnsOff() []string {
	return []string{"VALIDATION_WEBHOOK_CONFIG_NAME", "INJECTION_WEBHOOK_CONFIG_NAME", "ROOT_CA_DIR", "OUTRIGGER_JWKS_ROOTS"}
}

// read reads every variable of the table.
func (e *environment) read() error { return e.readFrom(os.LookupEnv) }

// readFrom reads the variables with a function, which also reports whether a variable is set. An
// invalid value is an error: a control plane with unintended settings is worse than one that does
// not start.
func (e *environment) readFrom(lookup func(string) (string, bool)) error {
	off := emptyTurnsOff()
	for _, v := range variables() {
		s, set := lookup(v.name)
		if s == "" && !(set && slices.Contains(off, v.name)) {
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
