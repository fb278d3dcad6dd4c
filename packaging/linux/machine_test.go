// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

const (
	agentUnit   = "outrigger-agent.service"
	controlUnit = "outrigger-control.service"
)

// TestMachine installs the packages on a machine, joins it to a mesh as a machine joins Istio, uses
// the services, upgrades the packages and removes them.
func TestMachine(t *testing.T) {
	m := newMachine(t)
	packages := makePackages(t, "--programs", *programs, "--arch", runtime.GOARCH, "--version", "v1.0.0", "--envoy-version", *envoyVersion, "--format", "deb")
	m.boot(packages)
	for _, step := range []struct {
		name string
		run  func(*machine)
	}{
		{"install", install},
		{"settings", settings},
		{"start", startServices},
		{"confined", confined},
		{"rules", redirected},
		{"logs", logs},
		{"reload", reload},
		{"TPROXY", tproxy},
		{"watchdog", watchdog},
		{"upgrade", upgrade},
		{"stop", stopped},
		{"reboot", reboot},
		{"remove", removed},
		{"purge", purged},
		{"rpm", withRPM},
	} {
		// Each step needs the machine of the one before.
		if !t.Run(step.name, func(t *testing.T) { m.t = t; step.run(m) }) {
			break
		}
	}
	m.t = t
}

func install(m *machine) {
	m.run("sh", "-c", "dpkg --install /packages/*.deb")
	for _, name := range []string{"outrigger", "outrigger-agent", "outrigger-control", "outrigger-envoy"} {
		if got := m.run("dpkg-query", "--show", "--showformat", "${Status}", name); got != "install ok installed" {
			m.t.Errorf("%s is %q", name, got)
		}
	}
	if output := m.run("dpkg", "--verify", "outrigger", "outrigger-agent", "outrigger-control", "outrigger-envoy"); output != "" {
		m.t.Errorf("dpkg --verify: %s", output)
	}
	if got := m.run("getent", "passwd", "istio-proxy"); !strings.HasPrefix(got, "istio-proxy:x:1337:1337:") {
		m.t.Errorf("the user is %q", got)
	}
	m.run("getent", "passwd", "outrigger-control")
	if output := m.run("systemd-analyze", "verify", agentUnit, controlUnit); output != "" {
		m.t.Errorf("systemd-analyze verify: %s", output)
	}
	for path, want := range map[string]string{
		"/etc/certs": "istio-proxy 755", "/etc/istio/proxy": "istio-proxy 755", "/etc/istio/config": "root 755", "/run/secrets/tokens": "istio-proxy 750",
		"/etc/outrigger/agent.env": "root 644", "/etc/outrigger/control.env": "root 644", "/etc/outrigger/config": "outrigger-control 755",
	} {
		if got := m.run("stat", "--format", "%U %a", path); got != want {
			m.t.Errorf("%s is of %s, want %s", path, got, want)
		}
	}
	for _, unit := range []string{agentUnit, controlUnit} {
		if got := m.property(unit, "ActiveState") + " " + m.property(unit, "UnitFileState"); got != "inactive disabled" {
			m.t.Errorf("%s is %s after the installation", unit, got)
		}
	}
	for _, command := range [][]string{{"outrigger", "version"}, {"outrigger-agent", "version"}, {"outrigger-control", "version"}, {"/usr/lib/outrigger/envoy", "--version"}} {
		m.run(command...)
	}
	for _, program := range []string{"outrigger", "outrigger-agent", "outrigger-control"} {
		m.run("bash", "-n", "/usr/share/bash-completion/completions/"+program)
		m.run("test", "-s", "/usr/share/man/man1/"+program+".1.gz")
	}
}

// issuer is an issuer of tokens.
type issuer struct{ key *ecdsa.PrivateKey }

// rule returns the setting of the control plane that accepts the tokens.
func (i issuer) rule(t *testing.T) string {
	t.Helper()
	point, err := i.key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(map[string]any{"keys": []map[string]string{{
		"kty": "EC", "crv": "P-256", "kid": "1", "alg": "ES256", "use": "sig",
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	rule, err := json.Marshal(map[string]any{"issuer": "https://issuer.test", "audiences": []string{"istio-ca"}, "jwks": string(keys)})
	if err != nil {
		t.Fatal(err)
	}
	return string(rule)
}

// token returns a token of a service account.
func (i issuer) token(t *testing.T, namespace, account string) string {
	t.Helper()
	part := func(content any) string {
		text, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(map[string]string{"alg": "ES256", "kid": "1"}) + "." + part(map[string]any{
		"iss": "https://issuer.test", "aud": "istio-ca", "sub": "system:serviceaccount:" + namespace + ":" + account,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	})
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// startServices starts the control plane, puts the files of a machine that joins a mesh where Istio
// has them, and starts the agent. Both starts return once the service has reported that it is ready.
func startServices(m *machine) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		m.t.Fatal(err)
	}
	tokens := issuer{key}
	m.run("sh", "-c", "cat >> /etc/outrigger/control.env <<'END'\nJWT_RULE='"+tokens.rule(m.t)+"'\nEND")
	m.write("/etc/outrigger/config/orders.yaml", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: default}
spec:
  hosts: [orders.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.99.0.7}]
`)
	m.run("systemctl", "enable", "--now", controlUnit)
	if got := m.property(controlUnit, "StatusText"); got != "ready" {
		m.t.Errorf("the control plane reports %q", got)
	}

	m.run("mkdir", "/root/files")
	m.run("cp", "/var/lib/outrigger-control/ca/root-cert.pem", "/root/files/root-cert.pem")
	m.write("/root/files/istio-token", tokens.token(m.t, "default", "shop"))
	m.write("/root/files/hosts", "127.0.0.1 istiod.istio-system.svc\n")
	m.write("/root/files/mesh.yaml", "defaultConfig:\n  discoveryAddress: istiod.istio-system.svc:15012\n  terminationDrainDuration: 1s\n  drainDuration: 1s\n")
	m.write("/var/lib/istio/envoy/sidecar.env", "# a comment\nISTIO_NAMESPACE=default\n")
	m.write("/root/files/cluster.env", `CANONICAL_SERVICE='shop'
ISTIO_INBOUND_PORTS='*'
ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'
ISTIO_METAJSON_LABELS='{"app":"shop"}'
ISTIO_META_CLUSTER_ID='Kubernetes'
ISTIO_META_WORKLOAD_NAME='shop'
ISTIO_SERVICE='shop.default'
ISTIO_SERVICE_CIDR='*'
POD_NAMESPACE='default'
SERVICE_ACCOUNT='shop'
TRUST_DOMAIN='cluster.local'
DRY_RUN_FILE_PATH='/root/written-by-rules'
a line without meaning
`)
	status := m.run("sh", "-e", "-c", "cd /root/files; sudo() { \"$@\"; }; "+documented(m.t, "install-on-a-machine.md", "enable --now outrigger-agent"))
	if !strings.Contains(status, "Status: \"ready; control plane: connected") {
		m.t.Errorf("the commands of the document print\n%s", status)
	}
	if got := m.property(agentUnit, "StatusText"); !strings.HasPrefix(got, "ready; control plane: connected") {
		m.t.Errorf("the agent reports %q", got)
	}
	if got := m.run("outrigger-agent", "request", "GET", "debug/config", "--debug-port", "15020"); !strings.Contains(got, "/usr/lib/outrigger/envoy") || !strings.Contains(got, `"app": "shop"`) {
		m.t.Errorf("the agent's configuration is %s", got)
	}
	if got := m.run("journalctl", "--no-pager", "--unit", agentUnit); !strings.Contains(got, "cluster.env:13: ignored: write NAME=value") {
		m.t.Errorf("the journal does not name the line without meaning:\n%s", got)
	}
	if got := m.run("journalctl", "--no-pager", "--unit", agentUnit); strings.Contains(got, "interception is missing") {
		m.t.Errorf("the agent finds no rules:\n%s", got)
	}
	if m.has("/root/written-by-rules") {
		m.t.Error("a file that the proxy's user may write made root write a file")
	}
	for path, want := range map[string]string{"/etc/certs/key.pem": "istio-proxy 600", "/etc/certs/cert-chain.pem": "istio-proxy 600", "/var/lib/outrigger-control": "outrigger-control 700"} {
		if got := m.run("stat", "--format", "%U %a", path); got != want {
			m.t.Errorf("%s is of %s, want %s", path, got, want)
		}
	}
}

// documented returns the block of commands of a page among the tasks that contains a text.
func documented(t *testing.T, page, with string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/tasks/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(string(text), "\n```")[1:] {
		if _, commands, _ := strings.Cut(block, "\n"); strings.Contains(commands, with) {
			return commands
		}
	}
	t.Fatalf("%s has no block with %q", page, with)
	return ""
}

// confined looks at what the processes of the services may do.
func confined(m *machine) {
	for unit, user := range map[string]string{agentUnit: "istio-proxy", controlUnit: "outrigger-control"} {
		processes := strings.Fields(m.run("sh", "-c", "cat /sys/fs/cgroup/system.slice/"+unit+"/cgroup.procs"))
		if len(processes) == 0 {
			m.t.Errorf("%s has no process", unit)
		}
		id := m.run("id", "--user", user)
		for _, pid := range processes {
			status := m.run("cat", "/proc/"+pid+"/status")
			for _, want := range []string{"Uid:\t" + id + "\t", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
				if !strings.Contains(status, "\n"+want) {
					m.t.Errorf("process %s of %s lacks %q:\n%s", pid, unit, want, status)
				}
			}
		}
		m.t.Log(unit, "exposure:", lastLine(m.run("systemd-analyze", "security", "--no-pager", unit)))
	}
}

func lastLine(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }

// connects reports whether a connection to an address succeeds at which nothing is. It does so only
// if it is redirected to Envoy.
func (m *machine) connects() bool {
	_, err := m.try("timeout", "5", "bash", "-c", "exec 3<>/dev/tcp/10.99.0.7/80")
	return err == nil
}

func redirected(m *machine) {
	if !m.connects() {
		m.t.Error("connections are not redirected to Envoy while the agent runs")
	}
}

// hotRestarts returns how many hot restarts have succeeded, as the agent's metrics have it.
func (m *machine) hotRestarts() string {
	m.t.Helper()
	for line := range strings.Lines(m.run("outrigger-agent", "request", "GET", "metrics", "--debug-port", "15020")) {
		if count, found := strings.CutPrefix(line, `outrigger_agent_hot_restarts_total{result="ok"} `); found {
			return strings.TrimSpace(count)
		}
	}
	return "0"
}

func reload(m *machine) {
	before := m.property(agentUnit, "MainPID")
	m.run("systemctl", "reload", agentUnit)
	m.until("the new Envoy has taken over", func() bool { return m.hotRestarts() == "1" })
	if after := m.property(agentUnit, "MainPID"); after != before {
		m.t.Errorf("the agent was %s and is %s", before, after)
	}
	if got := m.property(agentUnit, "ActiveState"); got != "active" {
		m.t.Errorf("the agent is %s", got)
	}
}

// tproxy makes Envoy see the addresses of clients, as the comment in the settings says. The next step
// restarts the agent without it.
func tproxy(m *machine) {
	m.run("cp", "--preserve", ownFile, "/root/agent.env")
	m.run("sh", "-c", "echo ISTIO_INBOUND_INTERCEPTION_MODE=TPROXY >> "+ownFile)
	const dropIn = "/etc/systemd/system/" + agentUnit + ".d/override.conf"
	m.write(dropIn, "[Service]\nCapabilityBoundingSet=CAP_NET_ADMIN\nAmbientCapabilities=CAP_NET_ADMIN\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "restart", agentUnit)
	if !m.connects() {
		m.t.Error("connections are not redirected to Envoy")
	}
	if got := m.run("outrigger-agent", "request", "GET", "config_dump?resource=dynamic_listeners&name_regex=virtualInbound"); !strings.Contains(got, `"transparent": true`) {
		m.t.Errorf("the inbound listener is not transparent: %s", got)
	}
	const only = "\nCapEff:\t0000000000001000\n" // CAP_NET_ADMIN
	if got := m.run("cat", "/proc/"+m.property(agentUnit, "MainPID")+"/status"); !strings.Contains(got, only) {
		m.t.Errorf("the agent has other capabilities:\n%s", got)
	}
	m.run("rm", dropIn)
	m.run("cp", "--preserve", "/root/agent.env", ownFile)
}

// watchdog stops the processes of services, which systemd notices and restarts.
func watchdog(m *machine) {
	units := []string{controlUnit, agentUnit}
	for _, unit := range units {
		m.write("/etc/systemd/system/"+unit+".d/test.conf", "[Service]\nWatchdogSec=4\nTimeoutAbortSec=1\n")
	}
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "restart", controlUnit, agentUnit)
	before := map[string]string{}
	for _, unit := range units {
		before[unit] = m.property(unit, "MainPID")
		_, _ = m.try("sh", "-c", "kill -STOP "+before[unit]) // a machine that is too busy has stopped it before
	}
	for _, unit := range units {
		m.until(unit+" runs again", func() bool {
			after := m.property(unit, "MainPID")
			return after != before[unit] && after != "0" && m.property(unit, "ActiveState") == "active"
		})
		if got := m.run("journalctl", "--no-pager", "--unit", unit); !strings.Contains(got, "Watchdog timeout") {
			m.t.Errorf("the journal of %s has no timeout:\n%s", unit, got)
		}
		m.run("rm", "-r", "/etc/systemd/system/"+unit+".d")
	}
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "restart", controlUnit, agentUnit)
}

// upgrade installs newer packages. The control plane restarts; the agent is replaced in its process,
// and replaces Envoy.
func upgrade(m *machine) {
	newer := makePackages(m.t, "--programs", *programs, "--arch", runtime.GOARCH, "--version", "v1.1.0", "--envoy-version", *envoyVersion+".1", "--format", "deb")
	m.copy(newer, "/newer")
	m.run("sh", "-c", "echo OUTRIGGER_AGENT_FLAGS=--profiling=false >> /etc/outrigger/agent.env")
	agent, control := m.property(agentUnit, "MainPID"), m.property(controlUnit, "MainPID")
	m.run("sh", "-c", "dpkg --install /newer/*.deb")
	m.until("the agent is replaced", func() bool { return !m.outdated() })
	if after := m.property(agentUnit, "MainPID"); after != agent {
		m.t.Errorf("the process of the agent was %s and is %s", agent, after)
	}
	m.until("the control plane has restarted", func() bool {
		return m.property(controlUnit, "MainPID") != control && m.property(controlUnit, "ActiveState") == "active"
	})
	m.until("the agent has replaced Envoy", func() bool { return m.hotRestarts() == "1" })
	if got := m.run("dpkg-query", "--show", "--showformat", "${Version}", "outrigger-agent"); got != "1.1.0" {
		m.t.Errorf("the version is %s", got)
	}
	if got := m.run("cat", "/etc/outrigger/agent.env"); !strings.HasSuffix(got, "--profiling=false") {
		m.t.Errorf("the upgrade has changed the settings:\n%s", got)
	}
	m.run("systemctl", "restart", agentUnit)
	if got := m.run("sh", "-c", "tr '\\0' ' ' < /proc/"+m.property(agentUnit, "MainPID")+"/cmdline"); got != "/usr/bin/outrigger-agent proxy sidecar --hot-restart --profiling=false" {
		m.t.Errorf("the agent runs as %q", got)
	}
}

// outdated reports whether the agent runs a program that an upgrade has replaced.
func (m *machine) outdated() bool {
	m.t.Helper()
	return strings.HasSuffix(m.run("readlink", "/proc/"+m.property(agentUnit, "MainPID")+"/exe"), " (deleted)")
}

func stopped(m *machine) {
	m.run("systemctl", "stop", agentUnit)
	if got := m.property(agentUnit, "Result"); got != "success" {
		m.t.Errorf("the stop of the agent is a %s", got)
	}
	if m.connects() {
		m.t.Error("connections are still redirected")
	}
	if m.has("/run/secrets/workload-spiffe-uds") {
		m.t.Error("the directory of the sockets is still there")
	}
	m.run("systemctl", "start", agentUnit)
}

// reboot ends the machine and boots it again. The services start by themselves, although the token is
// gone with /run: the agent proves its identity with its certificate.
func reboot(m *machine) {
	m.halt()
	m.start()
	m.until("the agent is ready", func() bool { return m.property(agentUnit, "ActiveState") == "active" })
	if m.has("/run/secrets/tokens/istio-token") {
		m.t.Error("the token is still there")
	}
	// The agent may have been ready before, with the last good configuration.
	m.until("the agent has reached the control plane", func() bool {
		got, err := m.try("outrigger-agent", "request", "GET", "healthz/ready", "--debug-port", "15020")
		return err == nil && strings.Contains(got, "control plane: connected")
	})
	if !m.connects() {
		m.t.Error("connections are not redirected to Envoy")
	}
}

// removed removes the packages while the services run.
func removed(m *machine) {
	m.run("dpkg", "--remove", "outrigger", "outrigger-agent", "outrigger-control", "outrigger-envoy")
	if got := m.run("sh", "-c", "cat /proc/[0-9]*/comm"); strings.Contains(got, "outrigger") || strings.Contains(got, "envoy") {
		m.t.Errorf("processes are left:\n%s", got)
	}
	if m.connects() {
		m.t.Error("connections are still redirected")
	}
	for path, want := range map[string]bool{
		"/usr/bin/outrigger-agent": false, "/usr/lib/outrigger": false, "/usr/lib/systemd/system/" + agentUnit: false,
		"/etc/systemd/system/multi-user.target.wants/" + agentUnit: false, "/etc/systemd/system/multi-user.target.wants/" + controlUnit: false,
		"/etc/outrigger/agent.env": true, "/etc/outrigger/control.env": true, "/etc/outrigger/mesh.yaml": true, "/var/lib/outrigger-control/ca": true,
	} {
		if got := m.has(path); got != want {
			m.t.Errorf("after the removal there is %s: %t, want %t", path, got, want)
		}
	}
}

func purged(m *machine) {
	m.run("dpkg", "--purge", "outrigger-agent", "outrigger-control")
	for path, want := range map[string]bool{
		"/etc/outrigger/agent.env": false, "/etc/outrigger/control.env": false, "/etc/outrigger/mesh.yaml": false, "/var/lib/outrigger-control": false,
		"/etc/istio/proxy": false, "/var/log/istio": false, "/etc/logrotate.d/outrigger-agent": false,
		// These are of the administrator.
		"/etc/outrigger/config/orders.yaml": true, "/var/lib/istio/envoy/cluster.env": true, "/etc/certs/root-cert.pem": true,
	} {
		if got := m.has(path); got != want {
			m.t.Errorf("after the purge there is %s: %t, want %t", path, got, want)
		}
	}
	if got, err := m.try("dpkg-query", "--show", "outrigger*"); err == nil {
		m.t.Errorf("dpkg still knows %s", got)
	}
}

// withRPM installs the packages with rpm, upgrades one and erases them.
func withRPM(m *machine) {
	m.run("rm", "-r", "/etc/outrigger")
	made := makePackages(m.t, "--programs", *programs, "--arch", runtime.GOARCH, "--version", "v1.0.0", "--envoy-version", *envoyVersion, "--format", "rpm")
	m.copy(made, "/rpm")
	// rpm does not know what dpkg has installed. Its plugins need D-Bus.
	m.run("sh", "-c", "rpm --install --noplugins --nodeps /rpm/*.rpm")
	if output := m.run("rpm", "--verify", "--nodeps", "outrigger", "outrigger-agent", "outrigger-control", "outrigger-envoy"); output != "" {
		m.t.Errorf("rpm --verify: %s", output)
	}
	if output := m.run("systemd-analyze", "verify", agentUnit, controlUnit); output != "" {
		m.t.Errorf("systemd-analyze verify: %s", output)
	}
	m.run("systemctl", "enable", "--now", controlUnit)
	m.run("sh", "-c", "echo A=b >> /etc/outrigger/agent.env")
	m.copy(makePackages(m.t, "--programs", small(m.t), "--arch", runtime.GOARCH, "--version", "v1.1.0", "--envoy-version", *envoyVersion+".1", "--format", "rpm"), "/newer-rpm")
	m.run("sh", "-c", "rpm --upgrade --noplugins --nodeps /newer-rpm/outrigger-agent-*.rpm")
	if got := m.run("cat", "/etc/outrigger/agent.env"); !strings.HasSuffix(got, "\nA=b") {
		m.t.Errorf("the upgrade has changed the settings:\n%s", got)
	}
	if got := m.property(controlUnit, "ActiveState"); got != "active" {
		m.t.Errorf("the control plane is %s", got)
	}
	m.run("rpm", "--erase", "--noplugins", "outrigger", "outrigger-agent", "outrigger-control", "outrigger-envoy")
	if got := m.run("sh", "-c", "cat /proc/[0-9]*/comm"); strings.Contains(got, "outrigger") {
		m.t.Errorf("processes are left:\n%s", got)
	}
	for path, want := range map[string]bool{
		"/usr/bin/outrigger-agent": false, "/usr/lib/systemd/system/" + controlUnit: false, "/etc/systemd/system/multi-user.target.wants/" + controlUnit: false,
		"/etc/outrigger/agent.env": false, "/etc/outrigger/agent.env.rpmsave": true, "/etc/outrigger/control.env": false, "/var/lib/outrigger-control/ca": true,
	} {
		if got := m.has(path); got != want {
			m.t.Errorf("after the removal there is %s: %t, want %t", path, got, want)
		}
	}
}
