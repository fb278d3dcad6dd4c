// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/outrigger-mesh/outrigger/e2e/kube/parts"
)

// EtcdOptions configures a separate etcd. The zero value means plain text.
type EtcdOptions struct {
	TLS  bool     // serve TLS, and only to clients with a certificate of Etcd.CA
	Data string   // data directory of a stopped etcd, which is copied; "" starts empty
	Args []string // additional flags; the last of a name wins
	Log  io.Writer
}

// Etcd is an etcd cluster with a single member.
type Etcd struct {
	*Server
	Endpoint string // URL for clients

	// Paths of PEM files for clients, "" without TLS.
	CA, Cert, Key string

	tls  *tls.Config
	work *workspace // nil: it belongs to a Cluster
}

// StartEtcd starts etcd on a free address and waits until it serves. ctx bounds the start; the
// server runs until Close.
func StartEtcd(ctx context.Context, o EtcdOptions) (*Etcd, error) {
	programs, err := parts.Get(ctx, orDiscard(o.Log))
	if err != nil {
		return nil, err
	}
	work, err := newWorkspace("")
	if err != nil {
		return nil, err
	}
	etcd, err := newEtcd(programs.Etcd, work, o)
	if err == nil {
		etcd.work = work
		err = etcd.Start(ctx)
	}
	if err != nil {
		if etcd != nil {
			etcd.Kill()
		}
		return nil, errors.Join(err, work.close(false))
	}
	return etcd, nil
}

// newEtcd writes the files of etcd without starting it.
func newEtcd(path string, work *workspace, o EtcdOptions) (*Etcd, error) {
	e := &Etcd{Endpoint: "http://" + work.host(etcdPort)}
	peer := "http://" + work.host(etcdPeerPort)
	var security []string
	if o.TLS {
		e.Endpoint = "https://" + work.host(etcdPort)
		if err := e.secure(work); err != nil {
			return nil, fmt.Errorf("prepare the certificates of etcd: %w", err)
		}
		security = []string{
			"--cert-file=" + work.file("etcd-server.crt"), "--key-file=" + work.file("etcd-server.key"),
			"--trusted-ca-file=" + e.CA, "--client-cert-auth",
		}
	}
	if o.Data != "" {
		if err := os.CopyFS(work.file("etcd"), os.DirFS(o.Data)); err != nil {
			return nil, fmt.Errorf("copy the data of etcd: %w", err)
		}
	}
	args := []string{
		"--name=test", "--data-dir=" + work.file("etcd"), "--log-level=warn",
		"--listen-client-urls=" + e.Endpoint, "--advertise-client-urls=" + e.Endpoint,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer,
		// A killed process loses no data without fsync, because the kernel has it. A single member
		// can elect itself quickly.
		"--unsafe-no-fsync", "--heartbeat-interval=20", "--election-timeout=200",
	}
	e.Server = &Server{
		name: "etcd", path: path, dir: work.dir,
		args:  append(append(args, security...), o.Args...),
		ready: healthy(e.Endpoint+"/health", e.tls),
	}
	return e, nil
}

// secure creates an authority, the certificate of the server and that of its clients.
func (e *Etcd) secure(work *workspace) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	server, err := ca.server(work.address)
	if err != nil {
		return err
	}
	client, err := ca.user("etcd-client")
	if err != nil {
		return err
	}
	e.CA, e.Cert, e.Key = work.file("etcd-ca.crt"), work.file("etcd-client.crt"), work.file("etcd-client.key")
	if err := work.writeAll(map[string][]byte{
		"etcd-ca.crt": ca.pem, "etcd-server.crt": server.cert, "etcd-server.key": server.key,
		"etcd-client.crt": client.cert, "etcd-client.key": client.key,
	}); err != nil {
		return err
	}
	e.tls, err = clientTLS(ca.pem, client)
	return err
}

// TLS returns the TLS configuration of a client, or nil without TLS.
func (e *Etcd) TLS() *tls.Config { return e.tls.Clone() }

// Close kills etcd and removes its data. The etcd of a Cluster is closed by Cluster.Stop.
func (e *Etcd) Close() error { return e.close(false) }

func (e *Etcd) close(keepLogs bool) error {
	e.Kill() // the data is not read again
	if e.work == nil {
		return nil
	}
	return e.work.close(keepLogs)
}

func clientTLS(ca []byte, client pair) (*tls.Config, error) {
	certificate, err := tls.X509KeyPair(client.cert, client.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, nil
}

// healthy requests a URL to check whether its server serves. Each request has its own connection,
// because an older one may be to a server that has exited.
func healthy(url string, config *tls.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s: %s", url, response.Status, body)
		}
		return nil
	}
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
