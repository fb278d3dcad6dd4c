// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// fileAttacks are made by another user of the machine.
func fileAttacks() []attack {
	const area = "files"
	return []attack{
		{area, "a start with umask 0: what other users of the machine can read and write", "sockets are for the agent's group, the bootstrap for its user; no file holds a private key; no file is writable for others", looseFiles},
		{area, "another user reads and writes every file, connects to every socket and reads the processes of an agent and a control plane that keep keys on disk", "no key or token is read; nothing is written or connected to", sneak},
		{area, "another user plants links, pipes and links to endless files in directories that everybody may write, before the agent starts", "the workload is served; no file behind a link is changed; keys are in files of the agent's user with mode 0600; memory grows by less than 200 MB", plant},
		{area, "another user serves the socket of the certificates before the agent starts", "the agent refuses to start, and names the socket", impersonate},
	}
}

// nobody is the user and group id of attackers.
const nobody = 65534

// asNobody calls a function on a thread with the rights of an unprivileged user.
func asNobody(f func() error) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: another user needs root", errSkipped)
	}
	result := make(chan error, 1)
	go func() {
		_ = onLockedThread(func() error {
			// These system calls affect one thread; those of package syscall affect all.
			_, _, groups := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
			_, _, gid := unix.RawSyscall(unix.SYS_SETRESGID, nobody, nobody, nobody)
			_, _, uid := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody)
			for _, no := range []syscall.Errno{groups, gid, uid} {
				if no != 0 {
					result <- fmt.Errorf("%w: the user cannot be changed: %w", errSkipped, no)
					return nil
				}
			}
			result <- f()
			return nil
		})
	}()
	return <-result
}

// keeping returns variables of an agent that stores its keys on disk.
func keeping(dir string) []string {
	return []string{"OUTPUT_CERTS=" + dir, "OUTRIGGER_LAST_GOOD_IDENTITY=true", "OUTRIGGER_LAST_GOOD_SECRETS=true"}
}

// keyOf waits until the agent has written its key to a directory.
func keyOf(ctx context.Context, dir string) error {
	return eventually(ctx, func() error {
		path := filepath.Join(dir, "key.pem")
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode() != 0o600 || int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%s has mode %s and belongs to user %d", path, info.Mode(), st.Uid)
		}
		key, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(key, []byte("PRIVATE KEY")) {
			err = fmt.Errorf("%s holds no key", path)
		}
		return err
	})
}

func sneak(ctx context.Context, s *suite) (outcome, error) {
	out, err := s.folder("output")
	if err != nil {
		return outcome{}, err
	}
	return rig{env: keeping(out)}.run(ctx, s, func(c *sidecar) (string, error) {
		if err := keyOf(ctx, out); err != nil {
			return "", err
		}
		var found findings
		err := asNobody(func() error {
			// Public files are readable, which shows that the attacker can reach the directory.
			if _, err := os.ReadFile(filepath.Join(c.dir, "etc/istio/pod/labels")); err != nil {
				return fmt.Errorf("%w: another user cannot enter the directory at all: %w", errSkipped, err)
			}
			for _, dir := range []string{c.dir, out, c.plane.dir} {
				if err := filepath.WalkDir(dir, found.visit); err != nil {
					return err
				}
			}
			// The directories may be inaccessible, but their names are known.
			for _, name := range []string{"etc/istio/proxy/XDS", "var/run/secrets/workload-spiffe-uds/socket"} {
				if err := found.socket(filepath.Join(c.dir, name)); err != nil {
					return err
				}
			}
			if err := found.abstract(); err != nil {
				return err
			}
			return found.processes(c.process.PID, c.plane.PID)
		})
		if err == nil && (found.files < 10 || found.sockets < 2 || found.tried < 3) {
			err = fmt.Errorf("only %d files, %d sockets and %d processes were found", found.files, found.sockets, found.tried)
		}
		return "nothing was read, written or connected to", err
	})
}

// findings counts what another user has tried.
type findings struct{ files, sockets, tried int }

// visit tries to access an entry of a directory.
func (f *findings) visit(path string, d fs.DirEntry, err error) error {
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil // a directory that is not accessible to others
		}
		return err
	}
	switch {
	case d.IsDir():
		planted := filepath.Join(path, "planted")
		if os.WriteFile(planted, nil, 0o600) == nil {
			return fmt.Errorf("another user writes to the directory %s", path)
		}
	case d.Type()&fs.ModeSocket != 0:
		return f.socket(path)
	case d.Type().IsRegular():
		f.files++
		if file, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			_ = file.Close() // as above
			return fmt.Errorf("another user writes to %s", path)
		}
		return secretless(path)
	}
	return nil
}

// socket connects to a Unix socket.
func (f *findings) socket(path string) error {
	f.sockets++
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close() // opening it was sufficient
		return fmt.Errorf("another user connects to %s", path)
	}
	return nil
}

// secretless returns an error if a file is readable and contains a key or a token.
func secretless(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // not readable
	}
	for _, secret := range []string{"PRIVATE KEY", "eyJ", `"private_key"`} {
		if bytes.Contains(text, []byte(secret)) {
			return fmt.Errorf("another user reads %q in %s", secret, path)
		}
	}
	return nil
}

// abstract connects to abstract Unix sockets, which have no permissions.
func (f *findings) abstract() error {
	text, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 8 || !strings.HasPrefix(fields[7], "@") {
			continue
		}
		f.sockets++
		for _, network := range []string{"unix", "unixgram", "unixpacket"} {
			if conn, err := net.Dial(network, fields[7]); err == nil {
				_ = conn.Close() // opening it was sufficient
				return fmt.Errorf("another user connects to the abstract socket %s", fields[7])
			}
		}
	}
	return nil
}

// processes tries to read the memory and environment of programs, and of the children of the first
// one.
func (f *findings) processes(pids ...int) error {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); err == nil && len(fields) > 1 {
			n, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			if err == nil && fields[1] == strconv.Itoa(pids[0]) {
				pids = append(pids, n)
			}
		}
	}
	for _, pid := range pids {
		f.tried++
		for _, name := range []string{"environ", "mem", "maps", "auxv", "io"} {
			file, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err != nil {
				continue
			}
			_, err = file.Read(make([]byte, 1))
			_ = file.Close() // read-only
			if err == nil {
				return fmt.Errorf("another user reads %s of process %d", name, pid)
			}
		}
		if _, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
			return fmt.Errorf("another user sees the open files of process %d", pid)
		}
		if err := secretless(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil {
			return err
		}
	}
	return nil
}

// plantMemory is the maximum memory, in bytes, that planted files may cost an agent.
const plantMemory = 200e6

func plant(ctx context.Context, s *suite) (outcome, error) {
	own, err := s.folder("nobody")
	if err != nil {
		return outcome{}, err
	}
	out, err := s.folder("output")
	if err != nil {
		return outcome{}, err
	}
	if err := errors.Join(os.Chown(own, nobody, nobody), os.Chmod(out, 0o777)); err != nil {
		return outcome{}, fmt.Errorf("%w: another user needs root: %w", errSkipped, err)
	}
	victim := filepath.Join(s.dir, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		return outcome{}, err
	}
	r := rig{env: keeping(out), prepare: func(dir string) error {
		for _, name := range []string{"etc/istio/proxy", "var/run/secrets/workload-spiffe-uds", "var/lib/istio/data"} {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o777)); err != nil {
				return err
			}
		}
		return asNobody(func() error { return plantIn(dir, out, own, victim) })
	}}
	return r.run(ctx, s, func(c *sidecar) (string, error) {
		if err := keyOf(ctx, out); err != nil {
			return "", err
		}
		if err := eventually(ctx, func() error { return replaced(out, c.dir) }); err != nil {
			return "", err
		}
		used, err := c.process.usage()
		if err != nil {
			return "", err
		}
		if used.Peak > plantMemory {
			return "", fmt.Errorf("the agent used %.1f MB", float64(used.Peak)/1e6)
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "untouched" {
			return "", fmt.Errorf("a file behind a link is %q (%w)", text, err)
		}
		err = filepath.WalkDir(own, func(path string, d fs.DirEntry, err error) error {
			if err == nil && path != own && d.Name() != "roots" {
				err = fmt.Errorf("the agent follows a link to %s of another user", path)
			}
			return err
		})
		return "served, with files of its own", err
	})
}

// plantIn plants files where an agent will write and read.
func plantIn(dir, out, own, victim string) error {
	roots := filepath.Join(own, "roots")
	return errors.Join(
		os.WriteFile(roots, nil, 0o644),
		os.Symlink(victim, filepath.Join(dir, "etc/istio/proxy/envoy-rev.json")),
		os.Symlink(victim, filepath.Join(dir, "etc/istio/proxy/XDS")),
		os.Symlink(victim, filepath.Join(dir, "var/run/secrets/workload-spiffe-uds/socket")),
		syscall.Mkfifo(filepath.Join(dir, "var/lib/istio/data/index.json"), 0o666),
		os.Symlink(own, filepath.Join(dir, "var/lib/istio/data/last-good")),
		os.Symlink("/dev/zero", filepath.Join(out, "key.pem")),
		syscall.Mkfifo(filepath.Join(out, "cert-chain.pem"), 0o666),
		os.Symlink(roots, filepath.Join(out, "root-cert.pem")),
	)
}

// replaced returns an error unless the agent has replaced the planted files.
func replaced(out, dir string) error {
	for _, path := range []string{filepath.Join(out, "key.pem"), filepath.Join(out, "cert-chain.pem"), filepath.Join(out, "root-cert.pem"), filepath.Join(dir, "etc/istio/proxy/envoy-rev.json")} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
			return fmt.Errorf("%s is not the agent's (%w)", path, err)
		}
	}
	return nil
}

func impersonate(ctx context.Context, s *suite) (outcome, error) {
	server := grpc.NewServer()
	defer server.Stop()
	r := rig{prepare: func(dir string) error {
		path := filepath.Join(dir, "var/run/secrets/workload-spiffe-uds")
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o777)); err != nil {
			return err
		}
		return asNobody(func() error {
			l, err := net.Listen("unix", filepath.Join(path, "socket"))
			if err == nil {
				go func() { _ = server.Serve(l) }() // it ends with Stop
			}
			return err
		})
	}}
	_, err := r.run(ctx, s, func(*sidecar) (string, error) { return "", nil })
	switch {
	case err == nil:
		return outcome{}, errors.New("the agent takes its certificates from another user")
	case errors.Is(err, errSkipped):
		return outcome{}, err
	case !strings.Contains(err.Error(), "another user") || !strings.Contains(err.Error(), "workload-spiffe-uds/socket"):
		return outcome{}, fmt.Errorf("the agent does not say why it does not start: %w", err)
	}
	return outcome{seen: "refused"}, nil
}
