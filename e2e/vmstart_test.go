// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// machineStart starts the agent of a machine: the files of the machine's administrator and of the
// mesh set the environment, the rules are removed and set again, and the agent runs as its user.
const machineStart = `#!/bin/bash
set -eu
set -o allexport
source ./var/lib/istio/envoy/sidecar.env
source ./var/lib/istio/envoy/cluster.env
set +o allexport
export POD_NAME=$(basename "$PWD") INSTANCE_IP=$ISTIO_SVC_IP PROV_CERT=./etc/certs OUTPUT_CERTS=./etc/certs
agent=$PWD/usr/local/bin/pilot-agent
"$agent" istio-clean-iptables
"$agent" istio-iptables
"$agent" istio-iptables init --cleanup-only
"$agent" istio-iptables init
chown -R "$ENVOY_USER" etc var
exec su -s /bin/bash -c "exec $agent proxy $ISTIO_AGENT_FLAGS 2>&1" "$ENVOY_USER"
`

const machineMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.default.svc.cluster.local]
  addresses: [10.96.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  endpoints: [{address: WEB, serviceAccount: web}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: vm, namespace: default}
spec:
  hosts: [vm.default.svc.cluster.local]
  addresses: [10.96.0.2]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  endpoints: [{address: MACHINE, serviceAccount: vm}]
`

// TestMachineStart starts an agent as a virtual machine does: by a script as root, with settings
// from files, as a user without rights. Applications use names and addresses as without Envoy.
func TestMachineStart(t *testing.T) {
	t.Parallel()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	const account = "nobody"
	if _, err := user.Lookup(account); err != nil {
		t.Skip(err)
	}
	for _, program := range []string{"su", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	all := machines(t, "control", "vm", "web")
	control, vm, web := all[0], all[1], all[2]
	m := newIntercepted(t, control, strings.NewReplacer("WEB", web.ip4.String(), "MACHINE", vm.ip4.String()).Replace(machineMesh))
	for _, server := range []*machine{vm, web} {
		server.serve(t, "[::]:8080", http.HandlerFunc(whoAsks))
	}
	web.capture(t)
	m.agent(t, web, "web", "REDIRECT")
	m.startMachine(t, vm, account)

	vm.sees(t, "http://10.96.0.1/", "", "By=spiffe://cluster.local/ns/default/sa/web;", "URI=spiffe://cluster.local/ns/default/sa/vm")
	web.sees(t, "http://10.96.0.2/", "", "By=spiffe://cluster.local/ns/default/sa/vm;", "URI=spiffe://cluster.local/ns/default/sa/web")
	// The resolver of the system is not reachable from this network; the agent responds in its
	// place.
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return vm.Dial(ctx, network, address)
	}}
	eventually(t, time.Minute, func() string {
		addresses, err := resolver.LookupHost(t.Context(), "web.default.svc.cluster.local")
		if err == nil && len(addresses) == 1 && addresses[0] == "10.96.0.1" {
			return ""
		}
		return fmt.Sprintf("the name of the service is %q, %v", addresses, err)
	})
}

// startMachine runs the script, in a directory that looks like the root of a machine, until the test
// ends.
func (m *intercepted) startMachine(t *testing.T, at *machine, account string) {
	t.Helper()
	dir := filepath.Join(m.dir, "vm")
	m.identity(t, dir, "vm")
	for name, content := range map[string]string{
		"start.sh":                        machineStart,
		"etc/istio/config/mesh":           fmt.Sprintf("defaultConfig:\n  discoveryAddress: %s\n  binaryPath: %s\n  concurrency: 1\n  terminationDrainDuration: 1s\n  proxyMetadata: {ISTIO_META_DNS_CAPTURE: \"true\"}\n", hostPort(m.control.ip4, 15012), filepath.Join(dir, "usr/local/bin/envoy")),
		"var/lib/istio/envoy/sidecar.env": fmt.Sprintf("ENVOY_USER=%s\nISTIO_AGENT_FLAGS=\"--proxyLogLevel=warning\"\nISTIO_SVC_IP=%s\n", account, at.ip4),
		"var/lib/istio/envoy/cluster.env": "ISTIO_INBOUND_PORTS='*'\nISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'\nISTIO_SERVICE_CIDR='*'\nISTIO_META_DNS_CAPTURE='true'\n" +
			"ISTIO_META_CLUSTER_ID='Kubernetes'\nISTIO_META_WORKLOAD_NAME='vm'\nISTIO_NAMESPACE='default'\nPOD_NAMESPACE='default'\nSERVICE_ACCOUNT='vm'\nTRUST_DOMAIN='cluster.local'\nISTIOD_SAN='istiod.istio-system.svc'\n",
	} {
		put(t, filepath.Join(dir, name), content)
	}
	bin := filepath.Join(dir, "usr/local/bin")
	for _, made := range []string{bin, filepath.Join(dir, "etc/certs")} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range map[string]string{"pilot-agent": filepath.Join(repository(t), "bin", "outrigger-agent"), "envoy": envoyBinary(t)} {
		if err := copyProgram(filepath.Join(bin, name), from); err != nil {
			t.Fatal(err)
		}
	}
	// The account may not see the directories of the test.
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("bash", filepath.Join(dir, "start.sh"))
	cmd.Dir = dir
	m.run(t, at, cmd, "vm")
	m.ready(t, at, "vm")
}

// copyProgram makes a program available under another name.
func copyProgram(to, from string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
