// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
)

// Config configures a [Daemon].
type Config struct {
	Install InstallConfig
	Repair  RepairConfig
	// Monitoring serves /readyz, /healthz and /metrics.
	Monitoring net.Listener
}

// Daemon keeps the plugin installed on a node and repairs pods.
type Daemon struct {
	installer *installer
	repairer  *repairer // nil if pods are not repaired
	listener  net.Listener
	metrics   *metrics
}

// New checks the configuration.
func New(config Config, log *slog.Logger) (*Daemon, error) {
	d := &Daemon{listener: config.Monitoring, metrics: newMetrics()}
	var err error
	if d.installer, err = newInstaller(config.Install, log, d.metrics); err != nil {
		return nil, err
	}
	repair := config.Repair
	if repair.Enabled && (repair.RepairPods || repair.DeletePods || repair.LabelPods) {
		if repair.Node == "" {
			return nil, errors.New("--repair-node-name is empty: it must be the name of the node, whose pods are repaired")
		}
		d.repairer = &repairer{config: repair, cluster: config.Install.Cluster, log: log, metrics: d.metrics, netns: newNetns(repair.Namespaces)}
	}
	return d, nil
}

// Limits of the monitoring port, which Prometheus and the kubelet use.
const (
	monitoringConns = 100
	headerBytes     = 16 << 10
	monitoringTime  = 10 * time.Second
	monitoringIdle  = time.Minute
)

// Run runs until ctx is done or a part fails.
func (d *Daemon) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !d.metrics.isReady.Load() {
			http.Error(w, "the plugin is not installed", http.StatusServiceUnavailable)
		}
	})
	server := connlimit.NewHTTPServer(mux, connlimit.HTTP{
		HeaderBytes: headerBytes, Header: monitoringTime, Read: monitoringTime, Write: monitoringTime, Idle: monitoringIdle,
	})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := server.Serve(connlimit.Listen(d.listener, connlimit.Config{Total: monitoringConns, Evict: true, Unused: monitoringTime}))
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error { return d.installer.run(ctx) })
	if d.repairer != nil {
		group.Go(func() error { return d.repairer.run(ctx) })
	}
	return group.Wait()
}
