// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

func TestInside(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outside, want string
		routes        []string
	}{
		"first choice":         {"127.1.0.0/24", "10.1.0.0/24", nil},
		"another part in use":  {"127.1.0.0/24", "10.1.0.0/24", []string{"10.2.0.0/16", "192.168.0.0/16"}},
		"in use":               {"127.1.0.0/24", "100.65.0.0/24", []string{"10.0.0.0/8"}},
		"a part of it in use":  {"127.1.0.0/16", "100.65.0.0/16", []string{"10.1.7.0/24"}},
		"two in use":           {"127.200.3.0/28", "172.24.3.0/28", []string{"10.0.0.0/8", "100.64.0.0/10"}},
		"all in use":           {"127.1.0.0/24", "10.1.0.0/24", []string{"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "198.18.0.0/15", "192.168.0.0/16"}},
		"larger than another":  {"127.0.0.0/9", "10.0.0.0/9", []string{"10.0.0.0/8"}},
		"as large as the most": {"127.0.0.0/8", "10.0.0.0/8", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var routes []netip.Prefix
			for _, r := range c.routes {
				routes = append(routes, netip.MustParsePrefix(r))
			}
			outside := netip.MustParsePrefix(c.outside)
			got := inside(outside, routes)
			if got.String() != c.want {
				t.Errorf("inside(%s) is %s, want %s", c.outside, got, c.want)
			}
			n := &Network{inside: got}
			if a := n.Inside(outside.Addr().Next()); a != n.Hub() || !got.Contains(a) {
				t.Errorf("the first address is %s, and the hub has %s", a, n.Hub())
			}
		})
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	control := netip.MustParseAddrPort("127.1.0.1:15012")
	n := &Network{
		inside: netip.MustParsePrefix("10.1.0.0/24"), cfg: Config{Control: map[uint16]netip.AddrPort{15012: control}},
		relays: relays{published: []published{{address: netip.MustParseAddrPort("127.0.0.1:9000")}}},
	}
	for to, want := range map[string]string{
		"192.0.2.1:9000":  "192.0.2.1:9000",
		"10.1.0.1:80":     "127.0.0.1:80",
		"10.1.0.1:15012":  control.String(),
		"10.1.0.1:9000":   "", // leads to a workload
		"10.1.0.3:80":     "",
		"127.0.0.1:9000":  "",
		"127.1.0.1:15014": "", // the control plane
	} {
		got, err := n.destination(netip.MustParseAddrPort(to))
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("%s: got %s, %v, want %q", to, got, err, want)
		}
	}
}

func TestOnlyDNS(t *testing.T) {
	t.Parallel()
	const text = "passwd: files systemd\nhosts: files resolve [!UNAVAIL=return] dns\nnetworks: files\n"
	if got, want := onlyDNS(text), "passwd: files systemd\nhosts: files dns\nnetworks: files\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCaller(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env      []string
		uid, gid int
	}{
		"no sudo":           {nil, nobody, nobody},
		"sudo":              {[]string{"SUDO_UID=54321", "SUDO_GID=54322", "SUDO_USER=ann"}, 54321, 54322},
		"root":              {[]string{"SUDO_UID=0", "SUDO_GID=0"}, nobody, nobody},
		"not a uid":         {[]string{"SUDO_UID=ann"}, nobody, nobody},
		"larger than a uid": {[]string{"SUDO_UID=4294967296"}, nobody, nobody},
		"unchanged":         {[]string{"SUDO_UID=4294967295"}, nobody, nobody},
		"a proxy":           {[]string{"SUDO_UID=60706", "SUDO_GID=60706"}, nobody, nobody},
		"its group":         {[]string{"SUDO_UID=54321", "SUDO_GID=61183"}, 54321, nobody},
		"root gid":          {[]string{"SUDO_UID=54321", "SUDO_GID=0"}, 54321, nobody},
	} {
		if u := Caller(c.env); u.UID != c.uid || u.GID != c.gid {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "outrigger-public-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // of a test
	program, link := filepath.Join(dir, "program"), filepath.Join(dir, "link")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, nil, 0o755), os.Symlink(program, link)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func() error
		want   bool
	}{
		{func() error { return nil }, true},
		{func() error { return os.Chmod(program, 0o750) }, false},
		{func() error { return errors.Join(os.Chmod(program, 0o755), os.Chmod(dir, 0o700)) }, false},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if Public(program) != c.want || Public(link) != c.want || Public(filepath.Join(dir, "none")) {
			t.Errorf("Public is %v, %v, want %v", Public(program), Public(link), c.want)
		}
	}
}

// newTestNetwork is a network with the workloads a and b, which runs until the test ends.
func newTestNetwork(t *testing.T, outside string, publish func(*Network) error) *Network {
	t.Helper()
	if err := Check(t.Context()); errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p := netip.MustParsePrefix(outside)
	a := p.Addr().Next().Next()
	n, err := New(t.Context(), Config{Outside: p, Dir: t.TempDir(), Workloads: map[string]netip.Addr{"a": a, "b": a.Next()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := publish(n); err != nil {
		n.Close()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n
}

// echo answers with what comes, and ends when the caller does.
func echo(t *testing.T, l net.Listener) {
	t.Cleanup(func() { _ = l.Close() }) // ends the goroutine
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c) // the caller sees what is missing
			_ = c.Close()        // as above
		}
	}()
}

// exchange sends a text, ends, and returns the answer.
func exchange(c net.Conn) (string, error) {
	defer func() { _ = c.Close() }() // the answer was read
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	if _, err := io.WriteString(c, "text"); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func TestRelays(t *testing.T) {
	t.Parallel()
	published := netip.MustParseAddrPort("127.78.1.2:8080")
	refused := netip.MustParseAddrPort("127.78.1.2:8081")
	back := netip.MustParseAddrPort("127.0.0.1:28080")
	n := newTestNetwork(t, "127.78.1.0/24", func(n *Network) error {
		return errors.Join(n.Publish(published, "a", 9000, true), n.Publish(refused, "a", 9001, true), n.Publish(back, "a", 9000, true))
	})
	var inside net.Listener
	err := n.workloads["a"].do(func() (err error) {
		inside, err = net.Listen("tcp", "127.0.0.1:9000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	echo(t, inside)
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	echo(t, outside)
	_, port, _ := net.SplitHostPort(outside.Addr().String())
	hub := n.Hub().String()

	// The tests dial as root, whose connections would be redirected to an Envoy that does not run.
	out := func(address string) (net.Conn, error) {
		var conn net.Conn
		err := n.workloads["b"].do(func() (err error) {
			id := uintptr(n.ID("b"))
			// The group of this thread only, which ends with the call.
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESGID, id, id, id); errno != 0 {
				return errno
			}
			conn, err = net.Dial("tcp", address)
			return err
		})
		return conn, err
	}
	in := func(address string) (net.Conn, error) { return net.Dial("tcp", address) }
	for name, c := range map[string]struct {
		dial    func(string) (net.Conn, error)
		address string
		ok      bool
	}{
		"published":                        {in, published.String(), true},
		"published, nobody listens":        {in, refused.String(), false},
		"the machine":                      {out, net.JoinHostPort(hub, port), true},
		"the machine, nobody listens":      {out, net.JoinHostPort(hub, "1"), false},
		"the machine, around Envoy":        {out, net.JoinHostPort(hub, fmt.Sprint(back.Port())), false},
		"an address that is not a machine": {out, "192.0.2.1:1", false},
	} {
		t.Run(name, func(t *testing.T) {
			text := ""
			conn, err := c.dial(c.address)
			if err == nil {
				text, err = exchange(conn)
			}
			if c.ok != (err == nil && text == "text") {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
}

// TestView looks at the files and the DNS server of a workload.
func TestView(t *testing.T) {
	t.Parallel()
	n := newTestNetwork(t, "127.78.2.0/24", func(*Network) error { return nil })
	hidden := n.cfg.Dir
	if err := os.WriteFile(filepath.Join(hidden, "secret"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	place, err := n.AppPlace("a", Root())
	if err != nil {
		t.Fatal(err)
	}
	err = onThread(func() error {
		if err := place.Enter(); err != nil {
			return err
		}
		status, err := os.ReadFile("/proc/thread-self/status")
		for _, line := range []string{"CapInh:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
			if err != nil || !strings.Contains(string(status), line) {
				return fmt.Errorf("%q is missing in %q: %w", line, status, err)
			}
		}
		text, err := os.ReadFile(resolvConf)
		if err != nil || !strings.HasPrefix(string(text), "nameserver "+n.Hub().String()+"\n") {
			return fmt.Errorf("resolv.conf is %q: %w", text, err)
		}
		if list, err := os.ReadDir(hidden); err != nil || len(list) > 0 {
			return fmt.Errorf("the hidden directory has %v, %w", list, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(resolvConf); err != nil || strings.Contains(string(text), n.Hub().String()) {
		t.Errorf("resolv.conf of the machine is %q: %v", text, err)
	}
}
