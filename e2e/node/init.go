// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the node. They are its own: its network has no way out.
const (
	nodeName    = "node1"
	nodeAddress = "10.99.0.1"
	podRange    = "10.244.0.0/16"
	podSubnet   = "10.244.0.0/23" // room for more than 250 pods
)

// probe makes the system calls that a node needs.
func probe() error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("node", "/sys", "tmpfs", 0, ""); err != nil {
		return err
	}
	return network()
}

// initProcess is process 1 of a node: it sets up file systems and network, runs the tests as its
// child, and reaps orphaned processes. It returns the exit code of the tests.
func initProcess() (code int, err error) {
	var f files
	if err := json.Unmarshal([]byte(os.Getenv(filesVariable)), &f); err != nil {
		return 0, err
	}
	if err := join(strings.Split(os.Getenv(cgroupsVariable), ":")); err != nil {
		return 0, err
	}
	if err := fileSystems(f); err != nil {
		return 0, fmt.Errorf("mount the node's file systems: %w", err)
	}
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return 0, err
	}
	if err := network(); err != nil {
		return 0, fmt.Errorf("set up the node's network: %w", err)
	}
	if err := machineSettings(); err != nil {
		return 0, err
	}
	for name, value := range map[string]string{stageVariable: stageTests, "TMPDIR": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/usr/sbin"} {
		if err := os.Setenv(name, value); err != nil {
			return 0, err
		}
	}
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case pid == child.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == child.Pid:
			return 0, fmt.Errorf("the tests ended: signal %s", status.Signal())
		}
	}
}

// fileSystems replaces the root of this mount namespace by one in memory, with Debian's programs
// below /usr and the directories of this repository and its caches where they were.
func fileSystems(f files) error {
	all, err := hierarchies() // while /sys/fs/cgroup is the machine's
	if err != nil {
		return err
	}
	work, err := os.Getwd()
	if err != nil {
		return err
	}
	// Everything is mounted below /sys first, a directory that every machine has and that the node
	// mounts again.
	const root = "/sys"
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("node", root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"dev", "etc/cni", "home", "old", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var/lib", "var/log"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+link, filepath.Join(root, link)); err != nil {
			return err
		}
	}
	binds := map[string]string{filepath.Join(f.Root, "usr"): "/usr", "/dev": "/dev"}
	for _, dir := range f.Visible {
		binds[dir] = dir
	}
	for from, to := range binds {
		if err := os.MkdirAll(filepath.Join(root, to), 0o755); err != nil {
			return err
		}
		if err := mount(from, filepath.Join(root, to), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	if err := mount("proc", root+"/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := mount("sysfs", root+"/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, root+"/old"); err != nil {
		return fmt.Errorf("make %s the root: %w", root, err)
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	if err := os.Chmod("/tmp", 0o1777); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"hosts": "127.0.0.1 localhost\n", "resolv.conf": "nameserver " + nodeAddress + "\n", "passwd": "root:x:0:0:root:/root:/bin/sh\n",
	} {
		if err := os.WriteFile(filepath.Join("/etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := mountCgroups(all); err != nil {
		return err
	}
	// The mounts of the kubelet must reach containers.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	return os.Chdir(work)
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// network sets the address of the node and a default route. A bridge without ports bears the
// address, because not every kernel has dummy interfaces.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "node0"}}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add a bridge: %w", err)
	}
	address, err := netlink.ParseAddr(nodeAddress + "/24")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, address); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: everywhere})
}

// machineSettings lets the node forward packets. Kernel settings of the whole machine that the
// kubelet requires are replaced by files with these values: nothing changes outside.
func machineSettings() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join("/run", "setting-"+strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}
