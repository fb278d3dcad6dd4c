// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Ports on the cluster's address, from a range that the kernel does not use for outgoing
// connections. They do not change with a restart.
const (
	leasePort     = 20999
	apiServerPort = 20443
	etcdPort      = 20379
	etcdPeerPort  = 20380
)

const (
	addresses   = "127.77.47."
	directories = "outrigger-kube-"
	sweepAfter  = 24 * time.Hour
)

// workspace is an address and a directory that only the programs of one cluster use.
type workspace struct {
	dir     string
	address string
	lease   net.Listener
}

// newWorkspace reserves an address, the first free one if it is "". The process that listens on its
// lease port owns it; the kernel releases it when the process exits.
func newWorkspace(address string) (w *workspace, err error) {
	sweep()
	var lease net.Listener
	if address != "" {
		lease, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(leasePort)))
	} else {
		address, lease, err = takeAddress(addresses)
	}
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", directories)
	if err != nil {
		return nil, errors.Join(err, lease.Close())
	}
	return &workspace{dir: dir, address: address, lease: lease}, nil
}

// takeAddress reserves the first free address with the given prefix.
func takeAddress(prefix string) (string, net.Listener, error) {
	for i := range 254 {
		address := prefix + strconv.Itoa(1+(os.Getpid()*7+i)%254)
		lease, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(leasePort)))
		if err == nil {
			return address, lease, nil
		}
	}
	return "", nil, fmt.Errorf("take an address: port %d is not free on any of %s1 to 254", leasePort, prefix)
}

// sweep removes directories that are no longer used: of a killed test, or kept after a failure.
func sweep() {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), directories+"*")) // the pattern is valid
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > sweepAfter {
			_ = os.RemoveAll(dir) // it may belong to another user
		}
	}
}

func (w *workspace) file(name string) string { return filepath.Join(w.dir, name) }

// writeAll writes files that only their owner can read.
func (w *workspace) writeAll(files map[string][]byte) error {
	for name, content := range files {
		if err := os.WriteFile(w.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (w *workspace) host(port int) string { return net.JoinHostPort(w.address, strconv.Itoa(port)) }

// close releases the address and removes the directory, or only the data in it if the logs must be
// kept.
func (w *workspace) close(keepLogs bool) error {
	err := w.lease.Close()
	if keepLogs {
		return errors.Join(err, os.RemoveAll(w.file("etcd")))
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}
