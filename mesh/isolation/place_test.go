// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// as calls a function in a place, as its user.
func (p *Place) as(f func() error) error {
	return onThread(func() error {
		if err := p.Enter(); err != nil {
			return err
		}
		uid, gid := uintptr(p.credential.Uid), uintptr(p.credential.Gid)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESGID, gid, gid, gid); errno != 0 {
			return errno
		}
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			return errno
		}
		return f()
	})
}

// TestAgentPlace looks at files as two agents and as an application, with an umask that lets nobody
// read new files. Each agent sees its own directory and the programs.
func TestAgentPlace(t *testing.T) { //nolint:paralleltest // the umask is that of the process
	before := syscall.Umask(0o077)
	restore := func() { syscall.Umask(before) }
	t.Cleanup(restore)
	n := newTestNetwork(t, "127.78.3.0/24", func(*Network) error { return nil })
	program := filepath.Join(t.TempDir(), "program")
	if err := errors.Join(os.WriteFile(program, []byte("program"), 0o755), os.Chmod(program, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(makePassable(filepath.Dir(n.cfg.Dir), filepath.Base(n.cfg.Dir)), makePassable(n.cfg.Dir, "workloads")); err != nil {
		t.Fatal(err)
	}
	places := map[string]*Place{}
	for _, name := range []string{"a", "b"} {
		dir := filepath.Join(n.cfg.Dir, "workloads", name)
		key := filepath.Join(dir, "key")
		err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(key, []byte(name), 0o600), os.Chown(dir, n.ID(name), n.ID(name)), os.Chown(key, n.ID(name), n.ID(name)))
		if err != nil {
			t.Fatal(err)
		}
		if places[name], err = n.AgentPlace(name, filepath.Join("workloads", name), map[string]string{"programs/p": program}); err != nil {
			t.Fatal(err)
		}
	}
	restore()
	for name, other := range map[string]string{"a": "b", "b": "a"} {
		own := filepath.Join(AgentRoot(), "workloads", name)
		err := places[name].as(func() error {
			for path, want := range map[string]string{filepath.Join(own, "key"): name, filepath.Join(AgentRoot(), "programs/p"): "program"} {
				if text, err := os.ReadFile(path); err != nil || string(text) != want {
					return fmt.Errorf("%s is %q: %w", path, text, err)
				}
			}
			if err := os.WriteFile(filepath.Join(own, "new"), nil, 0o600); err != nil {
				return err
			}
			for _, dir := range []string{filepath.Join(AgentRoot(), "workloads", other), filepath.Join(n.cfg.Dir, "workloads", other), filepath.Join(n.cfg.Dir, "workloads", name)} {
				if _, err := os.Stat(filepath.Join(dir, "key")); !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("%s: %w, want that it does not exist", dir, err)
				}
			}
			_, err := os.ReadFile(resolvConf)
			return err
		})
		if err != nil {
			t.Errorf("the agent of %s: %v", name, err)
		}
	}
	if places["a"].credential.Uid == places["b"].credential.Uid || places["a"].credential.Gid == places["b"].credential.Gid {
		t.Error("two agents are one user, who can read the memory of both")
	}
	app, err := n.AppPlace("a", User{UID: nobody, GID: nobody})
	if err != nil {
		t.Fatal(err)
	}
	err = app.as(func() error {
		if _, err := os.Stat(filepath.Join(n.cfg.Dir, "workloads")); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the directories of agents: %w, want that they do not exist", err)
		}
		_, err := os.ReadFile(resolvConf)
		return err
	})
	if err != nil {
		t.Errorf("the application of a: %v", err)
	}
}

// TestAgentPlaceBelowRoot has the directory where agents see theirs.
func TestAgentPlaceBelowRoot(t *testing.T) {
	t.Parallel()
	n := newTestNetwork(t, "127.78.5.0/24", func(*Network) error { return nil })
	dir := n.cfg.Dir
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "workloads", "a"), 0o755), os.WriteFile(filepath.Join(dir, "workloads", "a", "key"), []byte("a"), 0o644)); err != nil {
		t.Fatal(err)
	}
	err := onThread(func() error {
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Mount(dir, AgentRoot(), "", unix.MS_BIND, ""))
		if err != nil {
			return err
		}
		n := *n
		n.cfg.Dir = AgentRoot()
		p, err := n.AgentPlace("a", "workloads/a", map[string]string{"programs/p": filepath.Join(AgentRoot(), "workloads", "a", "key")})
		if err == nil {
			err = p.Enter()
		}
		if err != nil {
			return err
		}
		for _, path := range []string{"workloads/a/key", "programs/p"} {
			if text, err := os.ReadFile(filepath.Join(AgentRoot(), path)); string(text) != "a" {
				return fmt.Errorf("%s is %q: %w", path, text, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestShares has connections to one workload take all of its places: those to another one, and those
// that come later, are forwarded.
func TestShares(t *testing.T) {
	t.Parallel()
	ports := map[string]netip.AddrPort{
		"a": netip.MustParseAddrPort("127.78.4.2:8080"), "a again": netip.MustParseAddrPort("127.78.4.2:8081"), "b": netip.MustParseAddrPort("127.78.4.3:8080"),
	}
	n := newTestNetwork(t, "127.78.4.0/24", func(n *Network) (err error) {
		n.relays.in["a"] = make(chan struct{}, 1) // fewer than listeners
		for name, at := range ports {
			err = errors.Join(err, n.Publish(at, name[:1], 9000, true))
		}
		return err
	})
	for _, ns := range n.workloads {
		var l net.Listener
		err := ns.do(func() (err error) {
			l, err = net.Listen("tcp", "127.0.0.1:9000")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		echo(t, l)
	}
	ask := func(name string) (string, error) {
		c, err := net.Dial("tcp", ports[name].String())
		if err != nil {
			return "", err // a refused connection may be reset while it is being established
		}
		return exchange(c)
	}
	first, err := net.Dial("tcp", ports["a"].String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if text, err := ask("a again"); err == nil && text != "" {
		t.Errorf("a second connection to a was forwarded: %q", text)
	}
	if text, err := ask("b"); err != nil || text != "text" {
		t.Errorf("a connection to b: %q, %v", text, err)
	}
	if text, err := exchange(first); err != nil || text != "text" {
		t.Errorf("the first connection: %q, %v", text, err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if text, err := ask("a again"); err == nil && text == "text" {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a connection after the first one: %q, %v", text, err)
		}
	}
}
