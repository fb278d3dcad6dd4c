// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/e2e/kube/parts"
)

// serviceRange has the addresses of Services. serverAddress is that of the API server for Pods.
const (
	serviceRange  = "10.96.0.0/16"
	serverAddress = "10.96.0.1"
)

const defaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Options configures a cluster. Most tests use the zero value.
type Options struct {
	Issuer       string          // of service account tokens; "" is https://kubernetes.default.svc.cluster.local
	FeatureGates map[string]bool // of kube-apiserver
	Args         []string        // additional flags of kube-apiserver; the last of a name wins
	Address      string          // of kube-apiserver and etcd; "" selects a free loopback address
	Etcd         EtcdOptions     // TLS also secures the connections from kube-apiserver to etcd
	Log          io.Writer       // receives progress of a build of the programs; may be nil
}

// Cluster is a kube-apiserver and its etcd. Each can be stopped, killed, paused and restarted; the
// data persists.
type Cluster struct {
	APIServer *Server
	Etcd      *Etcd
	URL       string // of kube-apiserver
	CA        []byte // PEM: signed the certificates of servers and users
	Version   string // of kube-apiserver, such as v1.36.3
	Issuer    string // of service account tokens

	work   *workspace
	ca     *authority
	config *rest.Config // of the administrator
	client kubernetes.Interface
}

// Start starts a cluster and waits until it serves and the namespace default with its service
// account exists. ctx bounds the start; the cluster lives until Stop.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	programs, err := parts.Get(ctx, orDiscard(o.Log))
	if err != nil {
		return nil, err
	}
	work, err := newWorkspace(o.Address)
	if err != nil {
		return nil, err
	}
	c := &Cluster{work: work, URL: "https://" + work.host(apiServerPort), Version: programs.APIServerVersion, Issuer: o.Issuer}
	if c.Issuer == "" {
		c.Issuer = defaultIssuer
	}
	if err := c.start(ctx, programs, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start a cluster: %w", err), c.close(false))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, programs parts.Parts, o Options) (err error) {
	if c.Etcd, err = newEtcd(programs.Etcd, c.work, o.Etcd); err != nil {
		return err
	}
	if err := c.Etcd.launch(); err != nil { // it is ready before kube-apiserver connects to it
		return fmt.Errorf("start etcd: %w", err)
	}
	if err := c.secure(); err != nil {
		return err
	}
	config, err := clientTLS(c.CA, pair{cert: c.config.CertData, key: c.config.KeyData})
	if err != nil {
		return err
	}
	c.APIServer = &Server{
		name: "kube-apiserver", path: programs.APIServer, dir: c.work.dir,
		args: c.args(o), ready: healthy(c.URL+"/readyz", config),
	}
	if err := c.APIServer.launch(); err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	if err := c.Etcd.Wait(ctx); err != nil {
		return err
	}
	if err := c.APIServer.Wait(ctx); err != nil {
		return err
	}
	return c.first(ctx)
}

// secure creates the authority, the files of kube-apiserver and the administrator.
func (c *Cluster) secure() (err error) {
	if c.ca, err = newAuthority(); err != nil {
		return fmt.Errorf("make an authority: %w", err)
	}
	c.CA = c.ca.pem
	server, err := c.ca.server(c.work.address)
	if err != nil {
		return err
	}
	tokens, err := serviceAccountKeys()
	if err != nil {
		return err
	}
	if err := c.work.writeAll(map[string][]byte{
		"ca.crt": c.CA, "server.crt": server.cert, "server.key": server.key,
		"tokens.pub": tokens.cert, "tokens.key": tokens.key,
	}); err != nil {
		return err
	}
	if c.config, err = c.Config("kubernetes-admin", "system:masters"); err != nil {
		return err
	}
	c.client, err = kubernetes.NewForConfig(c.config)
	return err
}

// args returns the flags of kube-apiserver.
func (c *Cluster) args(o Options) []string {
	args := []string{
		"--bind-address=" + c.work.address, "--advertise-address=" + c.work.address, fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--etcd-servers=" + c.Etcd.Endpoint,
		"--client-ca-file=" + c.work.file("ca.crt"), "--cert-dir=" + c.work.dir,
		"--tls-cert-file=" + c.work.file("server.crt"), "--tls-private-key-file=" + c.work.file("server.key"),
		"--service-account-issuer=" + c.Issuer,
		"--service-account-key-file=" + c.work.file("tokens.pub"), "--service-account-signing-key-file=" + c.work.file("tokens.key"),
		"--authorization-mode=Node,RBAC", "--anonymous-auth=false", "--allow-privileged=true",
		"--service-cluster-ip-range=" + serviceRange,
		"--kubelet-client-certificate=" + c.work.file("server.crt"), "--kubelet-client-key=" + c.work.file("server.key"),
		// A loopback address must not be the endpoint of a Service.
		"--endpoint-reconciler-type=none",
	}
	if o.Etcd.TLS {
		args = append(args, "--etcd-cafile="+c.Etcd.CA, "--etcd-certfile="+c.Etcd.Cert, "--etcd-keyfile="+c.Etcd.Key)
	}
	if len(o.FeatureGates) > 0 {
		var gates []string
		for _, name := range slices.Sorted(maps.Keys(o.FeatureGates)) {
			gates = append(gates, fmt.Sprintf("%s=%v", name, o.FeatureGates[name]))
		}
		args = append(args, "--feature-gates="+strings.Join(gates, ","))
	}
	return append(args, o.Args...)
}

// first waits for the namespaces that kube-apiserver creates, and creates the service account of
// default.
func (c *Cluster) first(ctx context.Context) error {
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespaceDefault} {
		err := wait.PollUntilContextCancel(ctx, 2*probeEvery, true, func(ctx context.Context) (bool, error) {
			_, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			return err == nil, nil
		})
		if err != nil {
			return fmt.Errorf("wait for the namespace %s: %w: %s", name, err, c.APIServer.tail(20))
		}
	}
	return c.CreateServiceAccount(ctx, metav1.NamespaceDefault, "default")
}

// Stop stops both programs and removes all files. When ctx is done, it kills kube-apiserver.
func (c *Cluster) Stop(ctx context.Context) error {
	return errors.Join(c.APIServer.Stop(ctx), c.close(false))
}

// close kills the running programs.
func (c *Cluster) close(keepLogs bool) error {
	if c.APIServer != nil {
		c.APIServer.Kill()
	}
	if c.Etcd != nil {
		c.Etcd.Kill()
	}
	return c.work.close(keepLogs)
}
