// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// The files of the agent's service, as Istio names them for a machine.
const (
	clusterFile = "var/lib/istio/envoy/cluster.env"
	meshFile    = "etc/istio/config/mesh"
	keyFile     = "etc/certs/key.pem"
	chainFile   = "etc/certs/cert-chain.pem"
	rootsFile   = "etc/certs/root-cert.pem"
	stateDir    = "etc/istio/proxy"

	unit      = "outrigger-agent.service"
	unitFile  = "usr/lib/systemd/system/" + unit
	proxyUser = "istio-proxy"
	// marker begins the files of settings that join writes and leave removes.
	marker = "# Written by outrigger join. outrigger leave removes it.\n"
)

// host is a machine that joins.
type host struct {
	root    string // directory of its files
	out     io.Writer
	uid     int // of this process
	account func(name string) (*user.User, error)
	running string // exists where systemd runs
	run     func(ctx context.Context, name string, args ...string) (string, error)
}

// runProgram runs a program and returns what it prints.
func runProgram(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(output))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, clip.Text(text, 1000))
	}
	return text, nil
}

func (h *host) path(name string) string { return filepath.Join(h.root, name) }

// managed reports whether systemd runs here.
func (h *host) managed() bool {
	_, err := os.Stat(h.running)
	return err == nil
}

// settings returns the content of the files of settings. All values have been checked: they have no
// quotes and no line feeds.
func settings(t *join.Token) (cluster, mesh string) {
	var b strings.Builder
	b.WriteString(marker)
	for _, v := range [][2]string{
		{"POD_NAMESPACE", t.ID.Namespace},
		{"SERVICE_ACCOUNT", t.ID.ServiceAccount},
		{"TRUST_DOMAIN", t.ID.TrustDomain},
		{"CANONICAL_SERVICE", t.ID.ServiceAccount},
		{"ISTIO_META_WORKLOAD_NAME", t.ID.ServiceAccount},
		{"ISTIO_META_CLUSTER_ID", t.Cluster},
		{"ISTIO_META_AUTO_REGISTER_GROUP", t.Group},
		{"ISTIO_META_DNS_CAPTURE", "true"},
		{"ISTIO_META_DNS_AUTO_ALLOCATE", "true"},
	} {
		if v[1] != "" {
			fmt.Fprintf(&b, "%s='%s'\n", v[0], v[1])
		}
	}
	return b.String(), fmt.Sprintf("%strustDomain: %q\ndefaultConfig:\n  discoveryAddress: %q\n", marker, t.ID.TrustDomain, t.Address)
}

// write writes all files.
func (h *host) write(t *join.Token, chain []*x509.Certificate, key []byte) error {
	uid, gid, err := h.proxy()
	if err != nil {
		return err
	}
	own := slices.DeleteFunc(slices.Clone(chain), func(c *x509.Certificate) bool { return slices.ContainsFunc(t.Roots, c.Equal) })
	cluster, mesh := settings(t)
	for _, f := range []struct {
		name     string
		content  []byte
		mode     fs.FileMode
		uid, gid int
	}{
		{clusterFile, []byte(cluster), 0o644, h.uid, -1},
		{meshFile, []byte(mesh), 0o644, h.uid, -1},
		{rootsFile, certs.EncodeChain(t.Roots...), 0o600, uid, gid},
		{chainFile, certs.EncodeChain(own...), 0o600, uid, gid},
		{keyFile, key, 0o600, uid, gid},
	} {
		if err := write(h.path(f.name), f.content, f.mode, f.uid, f.gid); err != nil {
			return err
		}
		h.say("wrote %s", h.path(f.name))
	}
	return nil
}

// write replaces a file. Others may write to its directory, so the owner is set of the open file.
func write(path string, content []byte, mode fs.FileMode, uid, gid int) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chown(uid, gid)); err != nil {
		return errors.Join(err, durable.Discard(f))
	}
	return durable.Commit(f, path, mode)
}

// proxy returns the user and the group of the agent.
func (h *host) proxy() (uid, gid int, err error) {
	u, err := h.account(proxyUser)
	if err != nil {
		return 0, 0, fmt.Errorf("the user %s is missing: install the package outrigger-agent", proxyUser)
	}
	uid, err = strconv.Atoi(u.Uid)
	if err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	return uid, gid, err
}

// joined returns the file that shows that this machine is part of a mesh, or "", and whether join
// wrote it.
func (h *host) joined() (path string, ours bool) {
	for _, name := range []string{clusterFile, meshFile, keyFile} {
		f, err := os.Open(h.path(name))
		if err != nil {
			continue
		}
		start, err := io.ReadAll(io.LimitReader(f, int64(len(marker))))
		_ = f.Close() // only read
		return h.path(name), err == nil && bytes.Equal(start, []byte(marker))
	}
	return "", false
}

// remove removes the files that join writes, and the state of the agent.
func (h *host) remove() error {
	var errs []error
	for _, name := range []string{keyFile, chainFile, rootsFile, meshFile, clusterFile} {
		if err := os.Remove(h.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	state, err := os.ReadDir(h.path(stateDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, entry := range state {
		errs = append(errs, os.RemoveAll(filepath.Join(h.path(stateDir), entry.Name())))
	}
	return errors.Join(errs...)
}
