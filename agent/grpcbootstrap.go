// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// writeGRPCBootstrap writes the bootstrap of proxyless gRPC applications. The file
// remains when the agent stops: an application that starts meanwhile waits for the
// socket, but would not start without the file.
//
// An error is returned only if the path was configured. It is logged for the default
// path, where the file may not be needed.
func writeGRPCBootstrap(cfg *settings, log *slog.Logger) error {
	path := cfg.env.GRPCBootstrap
	if path == "" {
		return nil
	}
	err := writeGRPCBootstrapTo(path, cfg)
	switch {
	case err == nil:
		return nil
	case path == environ.DefaultGRPCBootstrap:
		log.Warn("the bootstrap of proxyless gRPC applications is not written", "path", path, "err", err)
		return nil
	default:
		return fmt.Errorf("environment variable %s: %w; set it to a file that can be written, or to nothing", environ.NameGRPCBootstrap, err)
	}
}

func writeGRPCBootstrapTo(path string, cfg *settings) error {
	// The application has another working directory.
	socket, err := filepath.Abs(filepath.Join(cfg.proxyConfig.GetConfigPath(), bootstrap.XDSSocketName))
	if err != nil {
		return err
	}
	certDir := cfg.env.Identity.OutputDir
	if certDir != "" {
		if certDir, err = filepath.Abs(certDir); err != nil {
			return err
		}
	}
	doc, err := bootstrap.RenderGRPC(bootstrap.GRPCInput{
		Node: cfg.node, Metadata: cfg.metadata, Locality: cfg.locality, Socket: socket, CertDir: certDir,
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.ReplaceFast(path, doc, 0o644)
}
