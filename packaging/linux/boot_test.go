// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/packaging/images/debian"
)

// patience limits how long a test waits for what must come.
const patience = 3 * time.Minute

// A machine runs Debian with systemd as process 1, in namespaces of its own.
type machine struct {
	t    *testing.T
	name string // in the name of its cgroup
	root string // directory of its files, above those of base
	base string // directory of the files that it was installed with, which machines share
	pid  string // of its systemd
	// parent is the cgroup that the machine's is made in, halt ends the machine.
	parent string
	halt   func()
	// connect makes its network.
	connect func(*machine)
}

// stage1 enters a cgroup of its own, for systemd to manage, and starts stage2 in namespaces.
const stage1 = `
mkdir "$CGROUP"
echo 0 > "$CGROUP/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --net sh -e -c "$STAGE2"
`

// stage2 mounts what a machine has, and becomes systemd. What belongs to the kernel is read-only.
// Where files cannot be layered, the machine has a copy of the lower ones.
const stage2 = `
mount --make-rprivate /
mkdir -p "$ROOT" "$ROOT.work" "$ROOT.mounted"
if mount -t overlay -o "lowerdir=$BASE,upperdir=$ROOT,workdir=$ROOT.work" overlay "$ROOT.mounted"; then
	ROOT=$ROOT.mounted
else
	if [ ! -e "$ROOT/usr" ]; then cp --archive "$BASE/." "$ROOT"; fi
	mount --bind "$ROOT" "$ROOT"
fi
cd "$ROOT"
mkdir -p dev etc/systemd/system old proc root run sys tmp
mount -t proc proc proc
mount -o bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 dev dev
for name in null zero full random urandom tty; do touch dev/$name; mount -o bind /dev/$name dev/$name; done
ln -s /proc/self/fd dev/fd
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
if ! mount -t cgroup2 cgroup2 sys/fs/cgroup; then exit 1; fi
ln -sf /dev/null etc/systemd/system/console-getty.service
pivot_root . old
umount -l /old
exec env -i container=outrigger PATH=/usr/bin:/usr/sbin /usr/lib/systemd/systemd
`

// newMachine returns a machine to boot. It skips the test, and says why, where that is not possible.
func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		leaveOut(t, "no machine is booted: that needs root")
	}
	for _, program := range []string{"unshare", "nsenter", "pivot_root", "ip", "cp"} {
		if _, err := exec.LookPath(program); err != nil {
			leaveOut(t, "no machine is booted: %v", err)
		}
	}
	m := &machine{t: t, name: "machine", root: filepath.Join(t.TempDir(), "root"), halt: func() {}, connect: alone}
	for _, dir := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			m.parent = dir
			break
		}
	}
	if m.parent == "" {
		leaveOut(t, "no machine is booted: there are no cgroups of version 2")
	}
	m.sweep()
	return m
}

// boot starts the machine with the packages of a directory at /packages.
func (m *machine) boot(packages string) {
	t := m.t
	m.base = debianRoot(t)
	if err := os.MkdirAll(m.root, 0o755); err != nil {
		t.Fatal(err)
	}
	m.host("cp", "--recursive", "--link", packages, filepath.Join(m.root, "packages"))
	m.launch()
}

// launch starts the machine.
func (m *machine) launch() {
	// The thread that starts the machine must outlive it, because the machine ends with it.
	runtime.LockOSThread()
	m.t.Cleanup(func() { m.halt() })
	m.start()
}

// start connects the machine and boots it.
func (m *machine) start() {
	t := m.t
	cgroup := filepath.Join(m.parent, cgroupPrefix+strconv.Itoa(os.Getpid())+"-"+m.name)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-e", "-c", stage1)
	cmd.Env = append(os.Environ(), "CGROUP="+cgroup, "ROOT="+m.root, "BASE="+m.base, "STAGE2="+stage2)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	m.halt = func() {
		_ = cmd.Process.Kill() // and with it all processes of the machine
		<-ended
		m.remove(cgroup)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	m.until("the machine has a first process", func() bool {
		select {
		case <-ended:
			if strings.Contains(output.String(), "not permitted") {
				leaveOut(t, "no machine is booted: namespaces are not permitted here:\n%s", &output)
			}
			t.Fatalf("the machine has ended:\n%s", &output)
		default:
		}
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid)) // as if there were none
		m.pid = strings.TrimSpace(string(children))
		network, err := os.Readlink("/proc/" + m.pid + "/ns/net")
		return err == nil && m.pid != "" && network != own // else it is a program of stage1
	})
	m.connect(m) // services that start at boot find their addresses
	m.until("the machine has booted", func() bool {
		select {
		case <-ended:
			t.Fatalf("the machine has ended:\n%s", &output)
		default:
		}
		state, _ := m.try("systemctl", "is-system-running") // fails while it is not running
		return state == "running" || state == "degraded"
	})
}

// alone connects a machine to a network without other machines.
func alone(m *machine) {
	m.ip("link add eth0 type veth peer name eth1", "link set eth0 up", "link set eth1 up", "address add 10.99.0.2/24 dev eth0", "route add default dev eth0")
}

// ip runs commands of ip in the network of the machine.
func (m *machine) ip(commands ...string) {
	m.t.Helper()
	for _, arguments := range commands {
		m.host("nsenter", append([]string{"--target", m.pid, "--net", "ip"}, strings.Fields(arguments)...)...)
	}
}

// cgroupPrefix begins the name of a machine's cgroup; the id of the test process and the
// name of the machine follow.
const cgroupPrefix = "outrigger-packages-"

// sweep removes the cgroups of tests that were killed.
func (m *machine) sweep() {
	left, err := filepath.Glob(filepath.Join(m.parent, cgroupPrefix+"*"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, cgroup := range left {
		id, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(cgroup), cgroupPrefix), "-")
		pid, err := strconv.Atoi(id)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			m.remove(cgroup)
		}
	}
}

// remove removes the cgroups of a machine that has ended. Its processes may still be ending.
func (m *machine) remove(cgroup string) {
	m.until("the cgroups are empty", func() bool {
		// Those inside come first.
		_ = exec.CommandContext(context.Background(), "find", cgroup, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run() // looked at below
		_, err := os.Stat(cgroup)
		return errors.Is(err, os.ErrNotExist)
	})
}

// until waits for a condition.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("timeout: %s", what)
		}
	}
}

// host runs a program of this machine.
func (m *machine) host(name string, arguments ...string) {
	m.t.Helper()
	if output, err := exec.CommandContext(m.t.Context(), name, arguments...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s %q: %v\n%s", name, arguments, err, output)
	}
}

// try runs a program inside, and returns what it printed.
func (m *machine) try(arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", m.pid, "--all", "env", "-i", "PATH=/usr/sbin:/usr/bin", "LC_ALL=C", "SYSTEMD_PAGER="}, arguments...)...)
	output, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

// run is try for a program that must succeed.
func (m *machine) run(arguments ...string) string {
	m.t.Helper()
	output, err := m.try(arguments...)
	if err != nil {
		journal, _ := m.try("sh", "-c", "journalctl --sync; systemctl --no-pager status 'outrigger*'; journalctl --no-pager --lines 60") // for the message
		m.t.Fatalf("%q: %v\n%s\n\nthe journal:\n%s", arguments, err, output, journal)
	}
	return output
}

// property returns a property of a unit.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return m.run("systemctl", "show", "--value", "--property", name, unit)
}

// has reports whether a path exists inside.
func (m *machine) has(path string) bool {
	_, err := m.try("test", "-e", path)
	return err == nil
}

// write writes a file inside, for root.
func (m *machine) write(path, text string) {
	m.t.Helper()
	m.run("mkdir", "-p", filepath.Dir(path))
	file := filepath.Join("/proc", m.pid, "root", path)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// copy copies the files of a directory of this machine into a new one inside.
func (m *machine) copy(from, to string) {
	m.t.Helper()
	m.host("cp", "--recursive", from, filepath.Join("/proc", m.pid, "root", to))
}

// debianRoot returns a directory with the pinned packages, installed as far as dpkg knows. It makes
// it once for each state of the lock file.
func debianRoot(t *testing.T) string {
	t.Helper()
	const lock = "debian.lock"
	content, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	cache, err := filepath.Abs(filepath.Join(*programs, "packages"))
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(cache, "machine-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(root); err == nil {
		return root
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	made, err := os.MkdirTemp(cache, ".machine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(made) }) // it was renamed, or is of no use
	if err := os.Chmod(made, 0o755); err != nil {
		t.Fatal(err)
	}
	pinned, err := debian.ReadLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	archive := debian.Archive{Cache: cache}
	var debs []string
	for _, p := range pinned {
		if p.Arch != runtime.GOARCH {
			continue
		}
		found, err := archive.Files(t.Context(), p)
		if errors.Is(err, debian.ErrUnavailable) {
			leaveOut(t, "no machine is booted: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range found {
			if err := writeFile(filepath.Join(made, name), f); err != nil {
				t.Fatal(err)
			}
		}
		debs = append(debs, filepath.Base(p.Path))
	}
	register(t, made, cache, debs)
	if err := os.Rename(made, root); err != nil {
		t.Fatal(err)
	}
	return root
}

func writeFile(path string, f debian.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return os.Symlink(f.Link, path)
	}
	return os.WriteFile(path, f.Content, os.FileMode(f.Mode))
}

// register writes what the scripts of the packages would have written, and the database of dpkg.
func register(t *testing.T, root, cache string, debs []string) {
	t.Helper()
	for _, dir := range []string{"tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var status bytes.Buffer
	for _, deb := range debs {
		content, err := os.ReadFile(filepath.Join(cache, deb))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "/usr/bin/dpkg-deb", "--field", "-")
		cmd.Stdin, cmd.Dir, cmd.SysProcAttr = bytes.NewReader(content), "/", &syscall.SysProcAttr{Chroot: root}
		cmd.Stderr = os.Stderr
		fields, err := cmd.Output()
		if err != nil {
			t.Fatalf("dpkg-deb %s: %v", deb, err)
		}
		name, _, _ := strings.Cut(deb, "_")
		fmt.Fprintf(&status, "%sStatus: install ok installed\n\n", fields)
		if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/info", name+".list"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range map[string][]byte{
		"var/lib/dpkg/status": status.Bytes(), "etc/machine-id": nil, "etc/hostname": []byte("machine\n"), "etc/hosts": []byte("127.0.0.1 localhost machine\n"),
	} {
		if err := os.WriteFile(filepath.Join(root, path), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"passwd", "group"} {
		content, err := os.ReadFile(filepath.Join(root, "usr/share/base-passwd", name+".master"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "etc", name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
