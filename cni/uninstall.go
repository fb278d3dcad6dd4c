// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
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
		in.log.Warn("the plugin stays on the node: whether it was uninstalled is unknown; if it was, and no pod starts, remove it from the network configuration of the node",
			"path", in.config.HostNetDir, "err", err)
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

// uninstalled reports whether the DaemonSet is gone: the API server says so, or it has said so in the
// watch of [installer.watchSet]. A refusal proves nothing: a token may be invalid for other reasons.
func (in *installer) uninstalled(ctx context.Context) (bool, error) {
	if in.config.DaemonSet == "" {
		return false, nil
	}
	for {
		gone, err := in.gone(ctx)
		if in.deleted.Load() && err != nil {
			return true, nil
		}
		if !hasCode(err, http.StatusUnauthorized, http.StatusForbidden) {
			return gone, err
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(askAgain):
		}
	}
}

// watchSet follows the DaemonSet until ctx is done. Accounts and rights are deleted together with the
// DaemonSet, so that the installer may not ask any more when it ends; an open watch still shows the
// deletion.
func (in *installer) watchSet(ctx context.Context) {
	for ctx.Err() == nil {
		_ = in.followSet(ctx) // the installer reports its own requests to the same server
		select {
		case <-ctx.Done():
		case <-time.After(repairAgain + rand.N(repairAgain)):
		}
	}
}

// followSet follows the DaemonSet until the watch ends.
func (in *installer) followSet(ctx context.Context) error {
	api, err := in.config.Cluster.connect()
	if err != nil {
		return err
	}
	defer api.close()
	ctx, cancel := context.WithTimeout(ctx, watchTime+listTimeout)
	defer cancel()
	body, err := api.open(ctx, request{path: daemonSets(in.config.Namespace), query: url.Values{
		"fieldSelector": {"metadata.name=" + in.config.DaemonSet}, "watch": {"true"}, "timeoutSeconds": {strconv.Itoa(int(watchTime.Seconds()))},
	}})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it was read
	for events := json.NewDecoder(io.LimitReader(body, maxAnswer)); ; {
		var event struct {
			Type   string    `json:"type"`
			Object daemonSet `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return err
		}
		switch event.Type {
		case "ADDED", "MODIFIED", "DELETED":
			in.deleted.Store(event.Type == "DELETED" || event.Object.Metadata.DeletionTimestamp != "")
		}
	}
}

// daemonSet is what matters of a DaemonSet.
type daemonSet struct {
	Metadata struct {
		DeletionTimestamp string `json:"deletionTimestamp"`
	} `json:"metadata"`
}

func daemonSets(namespace string) string {
	return "/apis/apps/v1/namespaces/" + url.PathEscape(namespace) + "/daemonsets"
}

// gone asks whether the DaemonSet is deleted.
func (in *installer) gone(ctx context.Context) (bool, error) {
	api, err := in.config.Cluster.connect()
	if err != nil {
		return false, err
	}
	defer api.close()
	var set daemonSet
	path := daemonSets(in.config.Namespace) + "/" + url.PathEscape(in.config.DaemonSet)
	err = api.do(ctx, request{path: path, out: &set})
	if hasCode(err, http.StatusNotFound) {
		return true, nil
	}
	return set.Metadata.DeletionTimestamp != "", err
}

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
