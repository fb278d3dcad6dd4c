// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

// networkPlugin is the program that sets up the network of the lab's pods.
const networkPlugin = "lab-network"

// TestMain also runs the programs of the lab, which are links to the test binary with other names.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "outrigger-cni":
		main()
		os.Exit(0)
	case networkPlugin:
		nothing := func(*skel.CmdArgs) error { return nil }
		skel.PluginMainFuncs(skel.CNIFuncs{Add: addNetwork, Check: nothing, Del: nothing}, cniversion.All, networkPlugin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// addNetwork adds the address at the end of the pod's name to the loopback interface.
func addNetwork(args *skel.CmdArgs) error {
	var conf types.NetConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return err
	}
	_, text, _ := strings.Cut(args.Args, "K8S_POD_NAME=pod-")
	text, _, _ = strings.Cut(text, ";")
	address, err := netlink.ParseAddr(strings.ReplaceAll(text, "-", ".") + "/32")
	if err != nil {
		return err
	}
	err = capture.InNamespace(args.Netns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), netlink.AddrReplace(lo, address))
	})
	if err != nil {
		return err
	}
	return types.PrintResult(&current.Result{IPs: []*current.IPConfig{{Address: *address.IPNet}}}, conf.CNIVersion)
}

// lab is a node: an API server, a container runtime, and their directories.
type lab struct {
	t      *testing.T
	dir    string
	server *httptest.Server

	mu      sync.Mutex
	pods    map[string]map[string]any // by namespace/name
	faults  int                       // every n-th request fails; 0 for none
	asked   int
	gone    bool     // the DaemonSet is deleted
	refused []string // tokens
	deleted []string
	patched map[string]string
	changed chan struct{} // closed when a pod changes
	removed chan struct{} // closed when the DaemonSet is deleted
	watched bool          // the DaemonSet
}

const (
	token       = "token-of-the-daemon"
	pluginToken = "token-of-the-plugin"
)

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	l := &lab{t: t, dir: t.TempDir(), pods: map[string]map[string]any{}, patched: map[string]string{}, changed: make(chan struct{}), removed: make(chan struct{})}
	l.server = httptest.NewUnstartedServer(http.HandlerFunc(l.serve))
	l.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // killing daemons causes errors of connections
	l.server.StartTLS()
	t.Cleanup(l.server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.server.Certificate().Raw})
	for name, text := range map[string]string{"account/token": token, "account/ca.crt": string(ca)} {
		l.write(name, text)
	}
	for _, dir := range []string{"bin", "net.d", "netns"} {
		if err := os.MkdirAll(l.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"bin/" + networkPlugin, "outrigger-cni"} {
		// A copy could not be executed while a child of another test still has it open for writing.
		if err := os.Symlink(self, l.path(program)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

// write replaces a file atomically.
func (l *lab) write(name, text string) {
	l.t.Helper()
	path := l.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path)); err != nil {
		l.t.Fatal(err)
	}
}

// serve responds like an API server to clients with the right token.
func (l *lab) serve(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	name, _ := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
	name = strings.Replace(name, "/pods/", "/", 1)
	pod := l.pods[name]
	own := r.Header.Get("Authorization") == "Bearer "+token
	answer := any(pod)
	switch {
	case slices.Contains(l.refused, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")):
		http.Error(w, `{"message": "Unauthorized"}`, http.StatusUnauthorized)
		return
	case l.faults > 0 && l.asked%l.faults == 0:
		http.Error(w, `{"message": "overloaded"}`, http.StatusServiceUnavailable)
		return
	case r.Method == http.MethodGet && pod != nil && r.Header.Get("Authorization") == "Bearer "+pluginToken:
	case r.Method == http.MethodPost && own && r.URL.Path == "/api/v1/namespaces/mesh/serviceaccounts/outrigger-cni-plugin/token":
		answer = map[string]any{"status": map[string]any{"token": pluginToken, "expirationTimestamp": time.Now().Add(time.Hour).Format(time.RFC3339)}}
	case own && r.URL.Path == "/apis/apps/v1/namespaces/mesh/daemonsets/outrigger-cni" && !l.gone:
		answer = map[string]any{"metadata": map[string]any{}}
	case own && r.URL.Path == "/apis/apps/v1/namespaces/mesh/daemonsets" && r.URL.Query().Get("fieldSelector") == "metadata.name=outrigger-cni":
		l.watchSet(w, r)
		return
	case own && r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("fieldSelector") == "spec.nodeName=node1":
		l.list(w, r)
		return
	case own && r.Method == http.MethodDelete && pod != nil:
		l.deleted = append(l.deleted, name)
	case own && r.Method == http.MethodPatch && pod != nil:
		text, _ := io.ReadAll(r.Body) // the test reports missing data
		l.patched[name] = string(text)
	default:
		http.Error(w, `{"message": "not found"}`, http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer) // the client reports errors
}

// shut stops the API server, which ends all watches.
func (l *lab) shut() {
	_ = l.server.Listener.Close() // no client can connect in any case
	l.server.CloseClientConnections()
}

// watchSet responds to a watch of the DaemonSet.
func (l *lab) watchSet(w http.ResponseWriter, r *http.Request) {
	l.watched = true
	l.mu.Unlock()
	defer l.mu.Lock()
	_, _ = io.WriteString(w, `{"type": "ADDED", "object": {"metadata": {}}}`) // the client reports errors
	_ = http.NewResponseController(w).Flush()
	select {
	case <-l.removed:
		_, _ = io.WriteString(w, `{"type": "DELETED", "object": {"metadata": {}}}`)
	case <-r.Context().Done():
	}
}

// list responds to a list, and to a watch, which has no event until a pod changes.
func (l *lab) list(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		changed := l.changed
		l.mu.Unlock()
		defer l.mu.Lock()
		_ = http.NewResponseController(w).Flush() // the client waits for the header
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		return
	}
	items := []any{}
	for _, p := range l.pods {
		items = append(items, p)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": items}) // the client reports errors
}

// set adds or replaces a pod. The text is JSON with verbs for the name and the namespace.
func (l *lab) set(namespace, name, text string) {
	l.t.Helper()
	var pod map[string]any
	if err := json.Unmarshal([]byte(fmt.Sprintf(text, name, namespace)), &pod); err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[namespace+"/"+name] = pod
	close(l.changed)
	l.changed = make(chan struct{})
}

// injected is a pod as the injector creates it.
const injected = `{
  "metadata": {"name": "%[1]s", "namespace": "%[2]s", "uid": "uid-%[1]s", "annotations": {"sidecar.istio.io/status": "{}"}},
  "spec": {"initContainers": [{"name": "istio-validation", "args": ["istio-iptables", "-p", "15001", "-z", "15006"]},
    {"name": "istio-proxy", "args": ["proxy", "sidecar"]}], "containers": [{"name": "app"}]}
}`

// namespace returns the file of a new network namespace, which exists until the test ends.
func (l *lab) namespace() string {
	l.t.Helper()
	path, end, err := newNamespace()
	if err != nil {
		l.t.Skipf("network namespaces are not available: %v", err)
	}
	l.t.Cleanup(end)
	return path
}

func newNamespace() (path string, end func(), err error) {
	made, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		err := unix.Unshare(unix.CLONE_NEWNET)
		made <- err
		if err == nil {
			<-done
		}
	}()
	err = <-made
	return path, sync.OnceFunc(func() { close(done) }), err
}

// runtimeConfig returns the configuration that a runtime uses: the first valid one.
func (l *lab) runtimeConfig() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(l.path("net.d"), []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, err
	}
	for _, file := range files { // sorted by ReadDir
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the file was removed in the meantime
		}
		if filepath.Ext(file) != ".conflist" { // a single plugin
			text = fmt.Appendf(nil, `{"cniVersion": "0.4.0", "name": "one", "plugins": [%s]}`, text)
		}
		if list, err := libcni.ConfListFromBytes(text); err == nil {
			return list, nil
		}
	}
	return nil, errors.New("no network configuration")
}

// add starts a pod like a runtime.
func (l *lab) add(ctx context.Context, namespace, name, netns string) error {
	list, err := l.runtimeConfig()
	if err != nil {
		return err
	}
	config := libcni.NewCNIConfigWithCacheDir([]string{l.path("bin")}, l.path("cache"), nil)
	result, err := config.AddNetworkList(ctx, list, l.runtimeConf(namespace, name, netns))
	if err != nil {
		return err
	}
	if r, err := current.GetResult(result); err != nil || len(r.IPs) != 1 {
		return fmt.Errorf("the result %v does not contain the address of the pod: %w", result, err)
	}
	return nil
}

func (l *lab) runtimeConf(namespace, name, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: name, NetNS: netns, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", "uid-" + name}, {"K8S_POD_INFRA_CONTAINER_ID", "c"},
	}}
}

// daemon is a running installer.
type daemon struct {
	cmd *exec.Cmd
	log *output
	end chan error
}

// output collects lines.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *output) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *output) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start starts the installer. It listens in its own network namespace if possible.
func (l *lab) start(environ ...string) *daemon {
	l.t.Helper()
	at, err := url.Parse(l.server.URL)
	if err != nil {
		l.t.Fatal(err)
	}
	d := &daemon{cmd: exec.Command(l.path("outrigger-cni"), "install"), log: &output{}, end: make(chan error, 1)}
	d.cmd.Env = append([]string{
		"KUBERNETES_SERVICE_HOST=" + at.Hostname(), "KUBERNETES_SERVICE_PORT=" + at.Port(), "SERVICE_ACCOUNT_DIR=" + l.path("account"),
		"MOUNTED_CNI_NET_DIR=" + l.path("net.d"), "CNI_NET_DIR=" + l.path("net.d"), "MOUNTED_CNI_BIN_DIR=" + l.path("bin"), "MOUNTED_NETNS_DIR=" + l.path("netns"),
		"POD_NAMESPACE=mesh", "DAEMONSET_NAME=outrigger-cni", "REPAIR_NODE_NAME=node1", "MONITORING_PORT=0",
	}, environ...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig depends on the thread
	if err := d.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	go func() { d.end <- d.cmd.Wait() }()
	l.t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // it may already have exited
		if l.t.Failed() {
			l.t.Log(d.log)
		}
	})
	return d
}

// stop sends a signal to the installer and waits until it exits.
func (l *lab) stop(d *daemon, signal os.Signal) {
	l.t.Helper()
	if err := d.cmd.Process.Signal(signal); err != nil {
		l.t.Fatal(err)
	}
	err := <-d.end
	if early := d.log.String() == ""; err != nil && signal != os.Kill && !early { // before it handles signals
		l.t.Errorf("the installer exited with %v\n%s", err, d.log)
	}
}

// eventually waits until a condition holds.
func (l *lab) eventually(what string, done func() bool) {
	l.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("condition not met within two minutes: %s", what)
		}
	}
}

// chained reports whether the configuration of the runtime contains the plugin.
func (l *lab) chained() bool {
	list, err := l.runtimeConfig()
	return err == nil && list.Plugins[len(list.Plugins)-1].Network.Type == "outrigger-cni"
}

// podName returns the address and the name of the n-th pod.
func podName(n int) (address net.IP, name string) {
	address = net.IPv4(10, 200, byte(n>>8), byte(n))
	return address, "pod-" + strings.ReplaceAll(address.String(), ".", "-")
}
