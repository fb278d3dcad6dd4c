// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

const (
	defaultQPS, defaultBurst = 80, 160
	// Thousands of reviews are needed when many proxies connect at once. The API server applies its
	// own limit (priority and fairness).
	reviewQPS, reviewBurst = 1000, 2000
)

// Config defines the API server to connect to and the credentials.
type Config struct {
	Kubeconfig string       // path of a kubeconfig; empty means the service account of the pod
	Context    string       // context of the kubeconfig; empty means its current context
	QPS        float32      // requests per second, not counting token reviews; zero means 80
	Burst      int          // maximum burst of requests; zero means 160
	UserAgent  string       // empty means outrigger-control
	Logger     *slog.Logger // nil means slog.Default()
	Metrics    *Metrics     // nil means none
}

// Client is a client for the API server of one cluster.
type Client struct {
	api     *api
	reviews *api              // with a higher limit
	signing *api              // with a separate limit, so that many certificates do not delay a lease
	objects dynamic.Interface // for kinds without a Go type here: configuration
	log     *slog.Logger
	metrics *Metrics
	access  *accessCache
}

// New returns a Client. It does not connect to the API server yet.
func New(cfg Config) (*Client, error) {
	restConfig, err := load(cfg)
	if err != nil {
		return nil, err
	}
	restConfig.UserAgent = cfg.UserAgent
	if restConfig.UserAgent == "" {
		restConfig.UserAgent = "outrigger-control"
	}
	restConfig.ContentType = "application/vnd.kubernetes.protobuf"
	restConfig.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	transport, err := rest.HTTPClientFor(restConfig)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	if cfg.QPS == 0 {
		cfg.QPS = defaultQPS
	}
	if cfg.Burst == 0 {
		cfg.Burst = defaultBurst
	}
	api, err := newAPI(restConfig, transport, cfg.QPS, cfg.Burst)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	reviews, err := newAPI(restConfig, transport, max(cfg.QPS, reviewQPS), max(cfg.Burst, reviewBurst))
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	signing, err := newAPI(restConfig, transport, cfg.QPS, cfg.Burst)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	c := newClient(cfg, api, reviews)
	c.signing = signing
	if c.objects, err = untyped(restConfig, transport, cfg.QPS, cfg.Burst); err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, nil
}

func newClient(cfg Config, api, reviews *api) *Client {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Client{api: api, reviews: reviews, signing: api, log: cfg.Logger, metrics: cfg.Metrics, access: newAccessCache()}
}

// load reads the kubeconfig or, if none is configured, the service account of the pod.
func load(cfg Config) (*rest.Config, error) {
	if cfg.Kubeconfig == "" {
		restConfig, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("connect to Kubernetes: this is not a pod, and no kubeconfig is named; name one")
		}
		if err != nil {
			return nil, fmt.Errorf("connect to Kubernetes as the service account of this pod: %w", err)
		}
		return restConfig, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: cfg.Context}
	restConfig, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes with kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	return restConfig, nil
}

func untyped(cfg *rest.Config, transport *http.Client, qps float32, burst int) (dynamic.Interface, error) {
	c := dynamic.ConfigFor(cfg)
	c.QPS, c.Burst = qps, burst
	return dynamic.NewForConfigAndClient(c, transport)
}

// UseLogger redirects the logs of the Kubernetes libraries to a logger. It must be called by main
// before any Client is used, because the libraries have one logger per process.
func UseLogger(log *slog.Logger) { klog.SetSlogLogger(log) }
