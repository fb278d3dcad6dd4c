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
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
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
	// problems has the last problem of each pod that was not repaired, by UID. Run owns it.
	problems map[string]string
	netns    netns
	listing  bool // netns was read after the pod was
}

const (
	watchTime   = 5 * time.Minute // then pods are listed again
	listTimeout = time.Minute
	repairAgain = 2 * time.Second // after an error
	podsAgain   = 8 * time.Second // after a pod could not be repaired; it doubles up to watchTime
)

// run watches the pods of the node until ctx is done.
func (r *repairer) run(ctx context.Context) error {
	problem, again := "", podsAgain // the last problem that was logged
	for ctx.Err() == nil {
		err := r.cycle(ctx, again)
		if again = min(2*again, watchTime); len(r.problems) == 0 {
			again = podsAgain
		}
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

// cycle looks at all pods of the node, and then at those that change. It ends earlier, after again,
// if a pod could not be repaired.
func (r *repairer) cycle(ctx context.Context, again time.Duration) error {
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
	watchCtx, cancel := context.WithTimeout(ctx, watchTime+listTimeout)
	defer cancel()
	soon := sync.OnceFunc(func() { time.AfterFunc(again, cancel) })
	if r.config.RepairPods { // once for all pods of the list
		if err := r.netns.read(); err != nil {
			return err
		}
	}
	r.listing = true
	done, problems := r.done, r.problems
	r.done, r.problems = map[string]bool{}, map[string]string{}
	for i := range list.Items {
		p := &list.Items[i]
		if failure, ok := done[p.Metadata.UID]; ok {
			r.done[p.Metadata.UID] = failure
		}
		if !r.try(ctx, api, p, problems) {
			soon()
		}
	}
	r.listing = false
	query.Set("watch", "true")
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	query.Set("timeoutSeconds", strconv.Itoa(int(watchTime.Seconds())))
	body, err := api.open(watchCtx, request{path: path, query: query})
	if err == nil {
		defer func() { _ = body.Close() }() // it was read
		err = r.follow(ctx, api, json.NewDecoder(body), soon)
	}
	if watchCtx.Err() != nil {
		return nil // it is time to list again
	}
	return err
}

// try looks at a pod, and reports whether nothing is left to do. It logs a problem unless it is the
// last one of the pod.
func (r *repairer) try(ctx context.Context, api *apiServer, p *pod, last map[string]string) bool {
	err := r.look(ctx, api, p)
	if err == nil {
		delete(r.problems, p.Metadata.UID)
		return true
	}
	text := err.Error()
	r.problems[p.Metadata.UID] = text
	if text != last[p.Metadata.UID] && ctx.Err() == nil {
		r.log.Warn("a pod without rules is not repaired yet; this program tries again", "namespace", p.Metadata.Namespace, "name", p.Metadata.Name, "err", err)
	}
	return false
}

// follow looks at the pods of a watch until it ends. It calls failed after a pod could not be
// repaired.
func (r *repairer) follow(ctx context.Context, api *apiServer, events *json.Decoder, failed func()) error {
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
		if !r.try(ctx, api, &p, r.problems) {
			failed()
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
			err = fmt.Errorf("%s: there is no network namespace with its address: delete the pod", r.config.Namespaces)
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
	switch {
	case hasCode(err, http.StatusNotFound, http.StatusConflict):
		return nil // the pod is gone
	case err != nil:
		r.metrics.repaired.WithLabelValues(kind, "FAILURE").Inc()
		return fmt.Errorf("%s: %w", kind, err)
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
	if !r.listing {
		if err := r.netns.read(); err != nil {
			return false, err
		}
	}
	namespace, err := r.netns.find(p)
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
