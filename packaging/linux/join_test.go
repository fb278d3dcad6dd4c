// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// roleVariable makes the test program an application on a machine: serve, load, or call.
const roleVariable = "OUTRIGGER_TEST_ROLE"

const (
	ordersURL = "http://orders.shop.svc.cluster.local/"
	stopFile  = "/root/stop"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVariable) {
	case "serve":
		err = serveClient()
	case "load":
		err = load(context.Background())
	case "call":
		err = call(context.Background(), os.Args[1:])
	default:
		os.Exit(m.Run())
	}
	fmt.Println(err)
	os.Exit(1)
}

// serveClient answers with the identity of the client, as Envoy passes it on.
func serveClient() error {
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, uri, _ := strings.Cut(r.Header.Get("X-Forwarded-Client-Cert"), "URI=")
		_, _ = fmt.Fprintf(w, "hello %s", uri) // a client that has gone
	})}
	return server.ListenAndServe()
}

// get requests a service.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// load sends requests until the file is there, at least one, and ends with an error that counts them.
func load(ctx context.Context) error {
	sent, failed := 0, 0
	for {
		sent++
		body, err := get(ctx, ordersURL)
		if err != nil || !strings.HasPrefix(body, "hello spiffe://cluster.local/ns/shop/sa/web") {
			failed++
			fmt.Printf("request %d: %q %v\n", sent, body, err)
		}
		if _, err := os.Stat(stopFile); err == nil {
			return fmt.Errorf("%d of %d requests failed", failed, sent)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// fleet are machines that are connected.
type fleet struct {
	control, orders, web *machine
	// older is the directory of packages of the older revision, line joins orders by a token of it.
	older, line string
}

func (f *fleet) all() []*machine { return []*machine{f.control, f.orders, f.web} }

// TestJoinMachines boots three machines with programs of an older revision, does what the page about
// joining says, and sends requests with mutual TLS and interception from one to another: also after a
// reboot and an upgrade, and while agents, Envoys and the control plane are replaced. One machine
// leaves and joins again by a token of the older revision. At the end, the control plane has the state
// of a backup of the older revision, and after a downgrade that of one of this revision.
func TestJoinMachines(t *testing.T) {
	f := bootFleet(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *fleet)
	}{
		{"join", joinFleet},
		{"traffic", traffic},
		{"reboot", rebootOrders},
		{"from older", fromOlder},
		{"upgrade", upgradeFleet},
		{"leave", leaveFleet},
		{"join again", joinAgain},
		{"backup", restoreControl},
		{"downgrade", downgradeFleet},
	} {
		// Each step needs the one before.
		if !t.Run(step.name, func(t *testing.T) {
			for _, m := range f.all() {
				m.t = t
			}
			step.run(t, f)
		}) {
			break
		}
	}
	for _, m := range f.all() {
		m.t = t
	}
}

func bootFleet(t *testing.T) *fleet {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{control: newMachine(t), orders: newMachine(t), web: newMachine(t)}
	f.older = makePackages(t, "--programs", olderPrograms(t), "--arch", runtime.GOARCH, "--version", "v0.9.0", "--envoy-version", *envoyVersion, "--format", "deb")
	for i, name := range []string{"control", "orders", "web"} {
		m := f.all()[i]
		m.name = name
		m.connect = onBridge(f.control, i+1)
		m.boot(f.older)
		m.host("cp", program, filepath.Join("/proc", m.pid, "root/root/app"))
		m.run("sh", "-c", "echo 10.99.1.1 mesh.example.com >> /etc/hosts; echo nameserver 10.99.1.1 > /etc/resolv.conf")
	}
	f.orders.write("/etc/systemd/system/app.service", "[Service]\nExecStart=/root/app\nEnvironment="+roleVariable+"=serve\nRestart=always\n[Install]\nWantedBy=multi-user.target\n")
	f.orders.run("systemctl", "enable", "--now", "app")
	return f
}

// olderPrograms builds the programs of an older revision and returns their directory. Where the history
// is missing, they are those of this one.
func olderPrograms(t *testing.T) string {
	t.Helper()
	const script = "../../scripts/older"
	revision := *from
	if revision == "" {
		var reason bytes.Buffer
		cmd := exec.CommandContext(t.Context(), script, "list", "1")
		cmd.Stderr = &reason
		out, err := cmd.Output()
		if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && failed.ExitCode() == 3 {
			fmt.Printf("== packages: %s upgrades from this revision: %s", t.Name(), &reason)
			return *programs
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, &reason)
		}
		revision = strings.TrimSpace(string(out))
	}
	dir := t.TempDir()
	own := filepath.Join(dir, "linux-"+runtime.GOARCH)
	if out, err := exec.CommandContext(t.Context(), script, "build", revision, own).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", revision, err, out)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(own, "outrigger"), "join", "--help").CombinedOutput(); err != nil {
		leaveOut(t, "the programs of %s cannot join machines: %s", revision, out)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", filepath.Join(native(t), "envoy"), own).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// onBridge returns the function that connects the machine with an address to a bridge in the network
// of the control plane.
func onBridge(control *machine, number int) func(*machine) {
	address := fmt.Sprintf("10.99.1.%d/24", number)
	return func(m *machine) {
		if m == control {
			m.ip("link add mesh type bridge", "link set mesh up", "address add "+address+" dev mesh")
			return
		}
		control.t = m.t
		control.until("the link of the last boot is gone", func() bool {
			return exec.CommandContext(m.t.Context(), "nsenter", "--target", control.pid, "--net", "ip", "link", "show", m.name).Run() != nil
		})
		control.ip("link add "+m.name+" type veth peer name eth0 netns "+m.pid, "link set "+m.name+" master mesh up")
		m.ip("link set lo up", "link set eth0 up", "address add "+address+" dev eth0", "route add default via 10.99.1.1")
	}
}

// follow runs commands of the page on a machine, in the directory of the packages.
func (m *machine) follow(commands string) string {
	m.t.Helper()
	return m.run("bash", "-e", "-c", "cd /packages; sudo() { \"$@\"; }; "+commands)
}

func joinFleet(t *testing.T, f *fleet) {
	const page = "join-machines.md"
	f.control.write("/packages/shop.yaml", documented(t, page, "kind: WorkloadGroup"))
	install := documented(t, page, "outrigger join create")
	printed := f.control.follow(install)
	line := lastLine(printed)
	if !strings.HasPrefix(line, "echo outrigger1.") || !strings.HasSuffix(line, " | sudo outrigger join -") {
		t.Fatalf("join create prints\n%s", printed)
	}
	commands := documented(t, page, "sudo outrigger join -")
	placeholder := lastLine(strings.TrimSpace(commands))
	output := f.orders.follow(strings.Replace(commands, placeholder, line, 1))
	t.Logf("orders joins:\n%s", output)
	if !strings.Contains(output, "this machine is part of the mesh") {
		t.Errorf("orders:\n%s", output)
	}
	// The line works once.
	f.web.follow(strings.Replace(commands, placeholder, "true", 1))
	if output, err := f.web.try("bash", "-c", "sudo() { \"$@\"; }; "+line); err == nil || !strings.Contains(output, "the join token was used") || f.web.has("/etc/certs/key.pem") {
		t.Errorf("the second use of a line: %v\n%s", err, output)
	}
	again := strings.TrimSpace(install[strings.Index(install, "sudo outrigger join create"):])
	line = lastLine(f.control.follow(strings.Replace(again, "account orders", "account web", 1)))
	if output := f.web.follow(line); !strings.Contains(output, "this machine is part of the mesh") {
		t.Errorf("web:\n%s", output)
	}
	if output, err := f.web.try("bash", "-c", "sudo() { \"$@\"; }; "+line); err == nil || !strings.Contains(output, "run outrigger leave first") {
		t.Errorf("joining twice: %v\n%s", err, output)
	}
	for _, m := range f.all() {
		if journal := m.run("journalctl", "--no-pager"); strings.Contains(journal, "outrigger1.") || strings.Contains(journal, "outrigger-join-") {
			t.Errorf("the journal of %s has a token", m.name)
		}
	}
	for path, want := range map[string]string{"/run/outrigger-control": "outrigger-control 700", "/run/outrigger-control/admin": "outrigger-control 600", "/var/lib/outrigger-control/join": "outrigger-control 700"} {
		if got := f.control.run("stat", "--format", "%U %a", path); got != want {
			t.Errorf("%s is of %s, want %s", path, got, want)
		}
	}
	if output, err := f.control.try("setpriv", "--reuid", "65534", "--clear-groups", "outrigger", "join", "create", "--service-account", "x"); err == nil || strings.Contains(output, "outrigger1.") {
		t.Errorf("another user creates a token: %v\n%s", err, output)
	}
}

// traffic waits until web reaches orders, whose application sees the identity of web.
func traffic(t *testing.T, f *fleet) {
	var output string
	defer func() {
		if t.Failed() {
			t.Logf("the last answer: %s\n%s\n%s", output, f.web.run("sh", "-c", "getent hosts orders.shop.svc.cluster.local; cat /etc/resolv.conf; ip route; journalctl --no-pager -n 20 -u outrigger-agent; outrigger-agent request GET clusters | grep orders"), f.control.run("sh", "-c", "ls -R /etc/outrigger; cat /etc/outrigger/config/shop/*; journalctl --no-pager -n 30 -u outrigger-control"))
		}
	}()
	f.web.until("orders answers web", func() bool {
		output, _ = f.web.try("env", roleVariable+"=load", "sh", "-c", "touch "+stopFile+"; /root/app") // its last line counts
		return strings.Contains(output, "0 of 1 requests failed")
	})
	// STRICT: plaintext from the control plane's machine, which has no agent, is refused.
	if output, err := f.control.try("timeout", "10", "bash", "-c", `exec 3<>/dev/tcp/10.99.1.2/8080; printf 'GET / HTTP/1.0\r\n\r\n' >&3; cat <&3`); strings.Contains(output, "hello") {
		t.Errorf("plaintext is served: %v\n%s", err, output)
	}
	if entries := f.control.run("sh", "-c", "cat /etc/outrigger/config/shop/*"); !strings.Contains(entries, "kind: WorkloadEntry") || !strings.Contains(entries, "10.99.1.2") {
		t.Errorf("the entries are\n%s", entries)
	}
}

// rebootOrders kills all processes of a machine and boots it again.
func rebootOrders(t *testing.T, f *fleet) {
	serial := func() string { return f.orders.run("sha256sum", "/etc/certs/root-cert.pem") }
	before := serial()
	f.orders.halt()
	f.orders.start()
	f.orders.run("sh", "-c", "echo nameserver 10.99.1.1 > /etc/resolv.conf")
	f.orders.until("the agent is ready", func() bool { return f.orders.property(agentUnit, "ActiveState") == "active" })
	traffic(t, f)
	if after := serial(); after != before {
		t.Errorf("the roots were %s and are %s", before, after)
	}
}

// fromOlder upgrades the packages of the older revision, whose agents have to be restarted.
func fromOlder(t *testing.T, f *fleet) {
	created := f.control.run("outrigger", "join", "create", "--namespace", "shop", "--service-account", "orders", "--address", "mesh.example.com:15012")
	f.line = lastLine(created)
	f.control.run("outrigger", "backup", "save", "/root/mesh.tar.gz")
	packages := makePackages(t, "--programs", *programs, "--arch", runtime.GOARCH, "--version", "v1.0.0", "--envoy-version", *envoyVersion, "--format", "deb")
	for _, m := range f.all() {
		m.copy(packages, "/newer")
	}
	f.install("/newer")
	f.restartAgents()
	traffic(t, f)
}

// install does what the page about upgrades says with the packages of a directory.
func (f *fleet) install(dir string) {
	const page = "upgrade.md"
	in := func(m *machine, with string) {
		m.run("sh", "-e", "-c", "cd "+dir+"; sudo() { \"$@\"; }; "+documented(m.t, page, with))
	}
	control := f.control.property(controlUnit, "MainPID")
	in(f.control, "outrigger-control")
	f.control.until("the control plane has restarted", func() bool {
		return f.control.property(controlUnit, "MainPID") != control && f.control.property(controlUnit, "ActiveState") == "active"
	})
	for _, m := range []*machine{f.orders, f.web} {
		in(m, "dpkg --install outrigger_*.deb outrigger-agent")
	}
}

// restartAgents does what the page says where an agent cannot be replaced while it runs, as an older one.
func (f *fleet) restartAgents() {
	for _, m := range []*machine{f.orders, f.web} {
		m.follow(documented(m.t, "upgrade.md", "systemctl restart"))
	}
}

// upgradeFleet replaces agents, Envoys and the control plane while requests are sent: dpkg installs the
// packages once more.
func upgradeFleet(t *testing.T, f *fleet) {
	f.web.run("rm", stopFile)
	result := make(chan string, 1)
	go func() {
		output, _ := f.web.try("env", roleVariable+"=load", "/root/app") // its last line counts
		result <- output
	}()
	f.install("/newer")
	for _, m := range []*machine{f.orders, f.web} {
		m.until("the agent of "+m.name+" is replaced, and so is Envoy", func() bool { return !m.outdated() && m.hotRestarts() == "1" })
	}
	f.web.run("touch", stopFile)
	if output := <-result; !strings.Contains(lastLine(output), "0 of ") {
		t.Errorf("requests failed:\n%s", output)
	} else {
		t.Log(lastLine(output))
	}
}

// restoreControl loses the state of the control plane and restores that of the older revision. The
// machines keep their identities, and are refused by nobody.
func restoreControl(t *testing.T, f *fleet) {
	const state = "/var/lib/outrigger-control"
	if output, err := f.control.try("outrigger", "backup", "restore", "/root/mesh.tar.gz"); err == nil || !strings.Contains(output, "the control plane runs") {
		t.Errorf("a restore while the control plane runs: %v\n%s", err, output)
	}
	roots := f.control.run("sha256sum", state+"/ca/root-cert.pem")
	f.control.run("systemctl", "stop", controlUnit)
	f.control.run("rm", "-r", state, "/etc/outrigger/config/shop", "/etc/outrigger/config/shop.yaml", "/etc/outrigger/mesh.yaml")
	f.control.run("outrigger", "backup", "restore", "/root/mesh.tar.gz")
	f.control.run("systemctl", "start", controlUnit)
	if after := f.control.run("sha256sum", state+"/ca/root-cert.pem"); after != roots {
		t.Errorf("the roots were %s and are %s", roots, after)
	}
	if got := f.control.run("stat", "--format", "%U %a", state+"/ca/ca-key.pem"); got != "outrigger-control 600" {
		t.Errorf("the key is of %s", got)
	}
	f.web.run("systemctl", "restart", agentUnit) // its certificate must be accepted
	f.web.until("web is connected", func() bool {
		got, err := f.web.try("outrigger-agent", "request", "GET", "healthz/ready", "--debug-port", "15020")
		return err == nil && strings.Contains(got, "control plane: connected")
	})
	traffic(t, f)
}

func leaveFleet(t *testing.T, f *fleet) {
	f.orders.run("outrigger", "leave")
	for _, path := range []string{"/etc/certs/key.pem", "/etc/istio/config/mesh", clusterFile, "/run/secrets/workload-spiffe-uds"} {
		// systemd removes its directory just after it has reported that the service is inactive.
		f.orders.until(path+" is removed", func() bool { return !f.orders.has(path) })
	}
	if got := f.orders.property(agentUnit, "ActiveState") + " " + f.orders.property(agentUnit, "UnitFileState"); got != "inactive disabled" {
		t.Errorf("the agent is %s", got)
	}
	f.control.until("the entry is removed", func() bool {
		output, err := f.control.try("grep", "--recursive", "10.99.1.2", "/etc/outrigger/config")
		return err != nil && output == ""
	})
	if _, err := f.orders.try("outrigger", "leave"); err == nil {
		t.Error("a machine leaves twice")
	}
}

// joinAgain joins a machine that has left, by the token of the older revision.
func joinAgain(t *testing.T, f *fleet) {
	if output := f.orders.follow(f.line); !strings.Contains(output, "this machine is part of the mesh") {
		t.Errorf("orders:\n%s", output)
	}
	traffic(t, f)
}

// downgradeFleet installs the packages of the older revision again. It reads a backup of the newer one.
func downgradeFleet(t *testing.T, f *fleet) {
	const state = "/var/lib/outrigger-control"
	f.control.run("outrigger", "backup", "save", "/root/newer.tar.gz")
	roots := f.control.run("sha256sum", state+"/ca/root-cert.pem")
	f.install("/packages")
	f.restartAgents()
	traffic(t, f)
	f.control.run("systemctl", "stop", controlUnit)
	f.control.run("rm", "-r", state, "/etc/outrigger/config/shop", "/etc/outrigger/config/shop.yaml", "/etc/outrigger/mesh.yaml")
	f.control.run("outrigger", "backup", "restore", "/root/newer.tar.gz")
	f.control.run("systemctl", "start", controlUnit)
	if after := f.control.run("sha256sum", state+"/ca/root-cert.pem"); after != roots {
		t.Errorf("the roots were %s and are %s", roots, after)
	}
	traffic(t, f)
}
