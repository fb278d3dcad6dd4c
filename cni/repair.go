// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

// RepairConfig says what happens to pods that were started without rules. RepairPods has precedence
// over DeletePods, and that over LabelPods.
type RepairConfig struct {
	Enabled bool
	Node    string // whose pods are repaired

	// RepairPods sets the rules of running pods. Their network namespaces are in Namespaces, a
	// directory of the container runtime. It needs the capabilities SYS_ADMIN and NET_ADMIN.
	RepairPods bool
	Namespaces string
	DeletePods bool
	// LabelPods sets the label LabelKey to LabelValue.
	LabelPods            bool
	LabelKey, LabelValue string

	// InitContainer is the container that verifies the rules; it ends with ExitCode if there are none.
	InitContainer string
	ExitCode      int
	// ExcludeNamespaces are left alone, as the plugin leaves them alone.
	ExcludeNamespaces []string
}

// repairer finds pods of a node that were started without rules.
type repairer struct {
	config  RepairConfig
	cluster Cluster
	log     *slog.Logger
	metrics *metrics
	// done has the pods that need nothing more, by UID, with the exit of the init container that was
	// known by then. Run owns it.
	done map[string]bool
}

const (
	watchTime   = 5 * time.Minute // then pods are listed again
	listTimeout = time.Minute
	repairAgain = 2 * time.Second // after an error
)

// run watches the pods of the node until ctx is done.
func (r *repairer) run(ctx context.Context) error {
	problem := "" // the last one that was logged
	for ctx.Err() == nil {
		err := r.cycle(ctx)
		if err == nil {
			problem = ""
		} else if ctx.Err() == nil {
			if text := err.Error(); text != problem {
				problem = text
				r.log.Warn("pods without rules may be found late", "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(repairAgain + rand.N(repairAgain)):
			}
		}
	}
	return nil
}

// cycle looks at all pods of the node, and then at those that change.
func (r *repairer) cycle(ctx context.Context) error {
	api, err := r.cluster.connect()
	if err != nil {
		return err
	}
	defer api.close()
	query := url.Values{"fieldSelector": {"spec.nodeName=" + r.config.Node}, "resourceVersion": {"0"}}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []pod `json:"items"`
	}
	const path = "/api/v1/pods"
	listCtx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if err := api.do(listCtx, request{path: path, query: query, out: &list}); err != nil {
		return err
	}
	before := r.done
	r.done = map[string]bool{}
	var failed error
	for i := range list.Items {
		p := &list.Items[i]
		if failure, ok := before[p.Metadata.UID]; ok {
			r.done[p.Metadata.UID] = failure
		}
		failed = errors.Join(failed, r.look(ctx, api, p))
	}
	if failed != nil {
		return failed
	}
	query.Set("watch", "true")
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	query.Set("timeoutSeconds", strconv.Itoa(int(watchTime.Seconds())))
	watchCtx, cancel := context.WithTimeout(ctx, watchTime+listTimeout)
	defer cancel()
	body, err := api.open(watchCtx, request{path: path, query: query})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it was read
	return r.follow(ctx, api, json.NewDecoder(body))
}

// follow looks at the pods of a watch until it ends.
func (r *repairer) follow(ctx context.Context, api *apiServer, events *json.Decoder) error {
	for {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := events.Decode(&event); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("watching pods: %w", err)
		case event.Type == "ERROR":
			return fmt.Errorf("watching pods: %s", bytes.TrimSpace(event.Object))
		case event.Type == "DELETED":
			continue // forgotten with the next list
		}
		var p pod
		if err := json.Unmarshal(event.Object, &p); err != nil {
			return fmt.Errorf("watching pods: %w", err)
		}
		if err := r.look(ctx, api, &p); err != nil {
			return err
		}
	}
}

// look repairs a pod if it has no rules.
func (r *repairer) look(ctx context.Context, api *apiServer, p *pod) error {
	failed := p.failed(r.config.InitContainer, r.config.ExitCode)
	if known, ok := r.done[p.Metadata.UID]; ok && known == failed {
		return nil
	}
	if p.outside() != "" || p.Metadata.DeletionTimestamp != "" || slices.Contains(r.config.ExcludeNamespaces, p.Metadata.Namespace) {
		return nil
	}
	var kind string
	var err error
	done := true
	switch {
	case r.config.RepairPods && len(p.Status.PodIPs) > 0 && (p.Status.Phase == "Pending" || p.Status.Phase == "Running"):
		kind = "repair"
		if done, err = r.setRules(ctx, p); failed && !done && err == nil {
			err = fmt.Errorf("%s has no network namespace with its address: delete the pod", r.config.Namespaces)
		}
	case r.config.RepairPods || !failed:
		return nil
	case r.config.DeletePods:
		kind = "delete"
		err = api.do(ctx, request{method: http.MethodDelete, path: podPath(p.Metadata.Namespace, p.Metadata.Name), body: map[string]any{
			"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": p.Metadata.UID},
		}})
	case r.config.LabelPods:
		kind = "label"
		err = api.do(ctx, request{method: http.MethodPatch, path: podPath(p.Metadata.Namespace, p.Metadata.Name), contentType: "application/merge-patch+json", body: map[string]any{
			"metadata": map[string]any{"uid": p.Metadata.UID, "labels": map[string]string{r.config.LabelKey: r.config.LabelValue}},
		}})
	}
	var status *statusError
	switch {
	case errors.As(err, &status) && (status.Code == http.StatusNotFound || status.Code == http.StatusConflict):
		return nil // the pod is gone
	case err != nil:
		r.metrics.repaired.WithLabelValues(kind, "FAILURE").Inc()
		return fmt.Errorf("pod %s/%s, which runs without rules: %s: %w", p.Metadata.Namespace, p.Metadata.Name, kind, err)
	case done:
		r.done[p.Metadata.UID] = failed
		if kind != "repair" {
			r.repaired(p, kind)
		}
	}
	return nil
}

func (r *repairer) repaired(p *pod, kind string) {
	r.metrics.repaired.WithLabelValues(kind, "SUCCESS").Inc()
	r.log.Warn("a pod was started without rules: it was started before the plugin was installed, or while another program had changed the network configuration",
		"namespace", p.Metadata.Namespace, "name", p.Metadata.Name, "kind", kind)
}

// failed reports whether the init container that verifies the rules has found none.
func (p *pod) failed(initContainer string, exitCode int) bool {
	for _, c := range p.Status.InitContainerStatuses {
		for _, s := range []containerState{c.State, c.LastState} {
			if c.Name == initContainer && s.Terminated != nil && s.Terminated.ExitCode == exitCode {
				return true
			}
		}
	}
	return false
}

// setRules sets the rules of a pod unless it has some, and reports whether its network namespace was
// found.
func (r *repairer) setRules(ctx context.Context, p *pod) (found bool, err error) {
	namespace, err := r.find(p)
	if err != nil || namespace == "" {
		return false, err
	}
	captured, err := capture.Captured(namespace)
	if err != nil || captured {
		return err == nil, err
	}
	if err := p.capture(ctx, namespace, r.log); err != nil {
		return false, err
	}
	r.repaired(p, "repair")
	return true, nil
}

// find returns the network namespace that has all addresses of a pod, or "" if there is none.
func (r *repairer) find(p *pod) (string, error) {
	entries, err := os.ReadDir(r.config.Namespaces)
	if err != nil {
		return "", err
	}
	var found string
	var closed error
	for _, e := range entries {
		path := filepath.Join(r.config.Namespaces, e.Name())
		var addresses []net.Addr
		err := capture.InNamespace(path, func() (err error) {
			addresses, err = net.InterfaceAddrs()
			return err
		})
		if errors.Is(err, os.ErrPermission) {
			closed = fmt.Errorf("%w; it needs the capability SYS_ADMIN", err)
		}
		if err != nil || !p.has(addresses) {
			continue // it is gone, or of another pod
		}
		if found != "" {
			return "", fmt.Errorf("%s and %s both have its address: delete the pod", found, path)
		}
		found = path
	}
	if found == "" {
		return "", closed
	}
	return found, nil
}

// has reports whether all addresses of the pod are among those of a network namespace.
func (p *pod) has(addresses []net.Addr) bool {
	for _, of := range p.Status.PodIPs {
		ip, err := netip.ParseAddr(of.IP)
		if err != nil || !slices.ContainsFunc(addresses, func(a net.Addr) bool {
			prefix, err := netip.ParsePrefix(a.String())
			return err == nil && prefix.Addr().Unmap() == ip.Unmap()
		}) {
			return false
		}
	}
	return len(p.Status.PodIPs) > 0
}
