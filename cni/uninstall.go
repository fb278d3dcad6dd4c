// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// endTimeout bounds the question whether the plugin is uninstalled. The grace period of the DaemonSet
// is longer.
const endTimeout = 20 * time.Second

// end removes the plugin if it was uninstalled.
func (in *installer) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	uninstalled, err := in.uninstalled(ctx)
	if err != nil {
		in.log.Warn("the plugin stays on the node: whether it was uninstalled is unknown", "err", err)
		return nil
	}
	if !uninstalled {
		in.log.Info("the plugin stays on the node, so that pods start with it while this pod is replaced")
		return nil
	}
	if err := in.remove(); err != nil {
		return err
	}
	in.log.Info("the plugin is removed from the node", "path", in.config.HostNetDir)
	return nil
}

// refusedTime is how long the API server must refuse every question of daemon and plugin until that
// means that their accounts or rights were deleted. It is shorter than endTimeout.
const refusedTime = 5 * time.Second

// uninstalled reports whether the DaemonSet is gone. An API server that refuses the question does
// not say so. But accounts and rights are deleted together with the DaemonSet, and a plugin without
// rights would keep all pods of the node from starting: if the API server refuses the plugin, too,
// for some time, it is uninstalled.
func (in *installer) uninstalled(ctx context.Context) (bool, error) {
	if in.config.DaemonSet == "" {
		return false, nil
	}
	for began := time.Now(); ; {
		gone, err := in.gone(ctx)
		if !refused(err) {
			return gone, err
		}
		if _, pluginErr := getPod(ctx, in.kubeconfig(), in.config.Namespace, in.config.DaemonSet); !refused(pluginErr) {
			began = time.Now() // its rights may be deleted next
		}
		if time.Since(began) >= refusedTime {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(askAgain):
		}
	}
}

// gone asks whether the DaemonSet is deleted.
func (in *installer) gone(ctx context.Context) (bool, error) {
	api, err := in.config.Cluster.connect()
	if err != nil {
		return false, err
	}
	defer api.close()
	var set struct {
		Metadata struct {
			DeletionTimestamp string `json:"deletionTimestamp"`
		} `json:"metadata"`
	}
	path := "/apis/apps/v1/namespaces/" + url.PathEscape(in.config.Namespace) + "/daemonsets/" + url.PathEscape(in.config.DaemonSet)
	err = api.do(ctx, request{path: path, out: &set})
	if hasCode(err, http.StatusNotFound) {
		return true, nil
	}
	return set.Metadata.DeletionTimestamp != "", err
}

func refused(err error) bool { return hasCode(err, http.StatusUnauthorized, http.StatusForbidden) }

// remove takes the plugin out of all configurations, then deletes its files.
func (in *installer) remove() error {
	entries, err := os.ReadDir(in.config.NetDir)
	if err != nil {
		return err
	}
	var problems []error
	for _, e := range entries {
		path := filepath.Join(in.config.NetDir, e.Name())
		text, err := os.ReadFile(path)
		if !isConf(e.Name()) || err != nil {
			continue
		}
		switch without, err := removePlugin(text); {
		case err != nil: // nothing that the runtime uses
		case without == nil:
			problems = append(problems, os.Remove(path))
		default:
			_, err := edit(path, text, removePlugin)
			problems = append(problems, err)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err // the configuration still needs the files
	}
	return errors.Join(os.Remove(in.kubeconfig()), os.Remove(filepath.Join(in.config.BinDir, PluginName)))
}
