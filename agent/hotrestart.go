// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/outrigger-mesh/outrigger/envoy"
)

// hotRestartSockets is how the names of the sockets begin by which two Envoys
// speak. They stand beside the agent's own socket, where nobody else may write.
const hotRestartSockets = "hr"

// hotRestart says how an Envoy takes over from another one; not at all without
// the flag. It waits for the control plane, without which it would have no
// configuration.
func hotRestart(cfg *settings, connected func() error) envoy.HotRestart {
	if !cfg.flags.HotRestart {
		return envoy.HotRestart{}
	}
	return envoy.HotRestart{
		Sockets:  filepath.Join(cfg.proxyConfig.GetConfigPath(), hotRestartSockets),
		Drain:    cfg.proxyConfig.GetDrainDuration().AsDuration(),
		Possible: connected,
	}
}

// hotRestarts asks for a hot restart at each SIGHUP until ctx is done, or hands over to
// the agent's program if that is another one now. Without --hot-restart the signal is left
// alone: it ends the agent, as it ends any program that does not know it.
func (p *parts) hotRestarts(ctx context.Context, log *slog.Logger) {
	if !p.hot {
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			path := replaced()
			if path != "" {
				err := p.handOver(ctx, path)
				if err == nil || ctx.Err() != nil {
					continue
				}
				log.Error("the program of the agent is another one now, but cannot replace this one; restart the agent", "path", path, "err", err)
			}
			if !p.envoy.HotRestart("SIGHUP") {
				log.Warn("hot restart request ignored: another one is pending", "signal", "SIGHUP")
			}
		}
	}
}
