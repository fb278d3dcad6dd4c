// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package stores

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/etcd"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
	"github.com/outrigger-mesh/outrigger/controlplane/config/mcp"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// Config holds what only some kinds of store need.
type Config struct {
	// Cluster returns the own cluster, for k8s:// without a path. Nil means the
	// kubeconfig that a person uses, or the service account of the pod.
	Cluster func() (*kube.Client, error)
	// Revision is that of the control plane; empty means "default".
	Revision string
	// UserAgent names this program to clusters of a kubeconfig, and QPS is how
	// much it asks them in a second; empty means what [kube.Config] says.
	UserAgent string
	QPS       float32
	// Namespace is where the control plane is, for xds://; empty means
	// "istio-system".
	Namespace string
}

// Drivers returns the driver of every kind of store, for [config.OpenConfig].
func Drivers(cfg Config) map[string]config.Driver {
	return map[string]config.Driver{
		"etcd":   etcd.Open,
		"fs":     file.Open,
		"k8s":    cfg.kubernetes,
		"memory": memory.Open,
		"xds":    mcp.Driver(mcp.Config{Revision: cfg.Revision, Namespace: cfg.Namespace}),
	}
}

// kubernetes opens k8s:// (the own cluster) and
// k8s:///path/of/kubeconfig?context=name (another one).
func (cfg Config) kubernetes(u *url.URL, open config.OpenConfig) (config.Store, error) {
	if u.Host != "" || u.User != nil {
		return nil, fmt.Errorf("config source %q names the host %q: write k8s:// for the local cluster, or k8s:///path/of/kubeconfig", u.Redacted(), u.Host)
	}
	query := u.Query()
	context := query.Get("context")
	namespaces := query["namespace"]
	query.Del("context")
	query.Del("namespace")
	if len(query) > 0 {
		return nil, fmt.Errorf("config source %q has unknown parameters %q: only context and namespace are allowed after the ?", u, query.Encode())
	}
	var client *kube.Client
	var err error
	switch {
	case (u.Path == "" || u.Path == "/") && context == "" && cfg.Cluster != nil:
		if client, err = cfg.Cluster(); err == nil && client == nil {
			err = errors.New("this control plane uses no cluster: name a kubeconfig with --kubeconfig, or write k8s:///path/of/kubeconfig")
		}
	default:
		path := u.Path
		if path == "/" {
			path = ""
		}
		client, err = kube.New(kube.Config{
			Kubeconfig: path, Context: context, UserAgent: cfg.UserAgent, QPS: cfg.QPS, Burst: int(cfg.QPS), Logger: open.Logger,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("config source %q: %w", u, err)
	}
	name := u.String()
	if u.Path == "" {
		name = "k8s://" // which a URL without anything behind does not print
	}
	return kube.NewConfigStore(kube.ConfigStoreConfig{
		Client: client, Name: name, Revision: cfg.Revision, Namespaces: namespaces, Kinds: open.Kinds, Logger: open.Logger,
	})
}
