// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pollEvery is how often the cluster is asked.
const pollEvery = 500 * time.Millisecond

// wait waits until the control plane runs with the applied configuration and its webhooks answer. It
// prints what it waits for whenever that changes.
func (i *installer) wait(ctx context.Context, objects []*unstructured.Unstructured, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTooLong)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for last := ""; ; {
		missing, err := i.missing(ctx, objects)
		switch {
		case err == nil && missing == "":
			return nil
		case err != nil && ctx.Err() == nil:
			missing = err.Error() // the API server may come back
		}
		if missing != last && ctx.Err() == nil {
			i.say("waiting: %s", missing)
			last = missing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errTooLong) {
				return errors.New("interrupted: the objects are applied, and the control plane may still start")
			}
			return fmt.Errorf("the control plane is not ready after %s: %s; the objects are applied: correct it and run the same command again, or remove them with outrigger uninstall", timeout, last)
		}
	}
}

var errTooLong = errors.New("the timeout has expired")

// missing says what the control plane still lacks, or returns "".
func (i *installer) missing(ctx context.Context, objects []*unstructured.Unstructured) (string, error) {
	if text, err := i.rollout(ctx); err != nil || text != "" {
		return text, err
	}
	for _, o := range objects {
		if o.GetKind() == "DaemonSet" {
			if text, err := i.everywhere(ctx, o); err != nil || text != "" {
				return text, err
			}
		}
	}
	for _, o := range objects {
		if !strings.HasSuffix(o.GetKind(), "WebhookConfiguration") {
			continue
		}
		r, err := resourceOf(o)
		if err != nil {
			return "", err
		}
		now, err := i.get(ctx, r, "", o.GetName())
		if err != nil {
			return "", err
		}
		if now == nil || !hasRoots(now) {
			return describe(o) + " has no roots yet; waiting for the control plane to write them", nil
		}
	}
	if slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "ValidatingWebhookConfiguration" }) {
		return i.probe(ctx)
	}
	return "", nil
}

// rollout says what the Deployment lacks.
func (i *installer) rollout(ctx context.Context) (string, error) {
	d, err := i.get(ctx, deployments, i.Namespace, i.deployment())
	if err != nil {
		return "", err
	}
	if d == nil {
		return "", fmt.Errorf("the Deployment %s was deleted", i.deployment())
	}
	number := numbersOf(d)
	want, available := number("spec", "replicas"), number("status", "availableReplicas")
	if number("status", "observedGeneration") >= number("metadata", "generation") && number("status", "updatedReplicas") == want &&
		number("status", "replicas") == want && available >= want {
		return "", nil
	}
	text := fmt.Sprintf("%d of %d pods of %s are ready", min(available, number("status", "updatedReplicas")), want, i.deployment())
	why, err := i.whyNot(ctx, d)
	return text + why, err
}

// numbersOf returns a function that reads numbers of an object; those that are absent are 0.
func numbersOf(o *unstructured.Unstructured) func(fields ...string) int64 {
	return func(fields ...string) int64 {
		n, _, _ := unstructured.NestedInt64(o.Object, fields...)
		if f, ok, _ := unstructured.NestedFloat64(o.Object, fields...); ok {
			n = int64(f) // JSON
		}
		return n
	}
}

// everywhere says what a DaemonSet lacks: until it is ready on a node, pods there start without it.
func (i *installer) everywhere(ctx context.Context, o *unstructured.Unstructured) (string, error) {
	r, err := resourceOf(o)
	if err != nil {
		return "", err
	}
	d, err := i.get(ctx, r, i.Namespace, o.GetName())
	if err != nil {
		return "", err
	}
	if d == nil {
		return "", fmt.Errorf("the DaemonSet %s is gone", o.GetName())
	}
	number := numbersOf(d)
	if number("status", "observedGeneration") < number("metadata", "generation") {
		return fmt.Sprintf("the nodes of %s are not counted yet", o.GetName()), nil
	}
	want, ready := number("status", "desiredNumberScheduled"), min(number("status", "numberAvailable"), number("status", "updatedNumberScheduled"))
	if ready >= want {
		return "", nil
	}
	why, err := i.whyNot(ctx, d)
	return fmt.Sprintf("%d of %d nodes have a ready pod of %s", ready, want, o.GetName()) + why, err
}

// whyNot returns the reasons why containers of the pods of a Deployment or DaemonSet do not run.
func (i *installer) whyNot(ctx context.Context, d *unstructured.Unstructured) (string, error) {
	const most = 300 // bytes of a reason
	labels, _, err := unstructured.NestedStringMap(d.Object, "spec", "selector", "matchLabels")
	if err != nil {
		return "", err
	}
	var selector []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		selector = append(selector, key+"="+labels[key])
	}
	pods, err := i.list(ctx, resource{version: "v1", plural: "pods", namespaced: true}, i.Namespace, url.Values{"labelSelector": {strings.Join(selector, ",")}})
	if err != nil {
		return "", err
	}
	reasons := map[string]bool{}
	for _, pod := range pods {
		statuses, _, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses") // absent at first
		for _, status := range statuses {
			container, _ := status.(map[string]any)
			waiting, _, _ := unstructured.NestedStringMap(container, "state", "waiting") // it runs
			if reason := waiting["reason"]; reason != "" && reason != "ContainerCreating" && reason != "PodInitializing" {
				text := strings.TrimSuffix(reason+": "+waiting["message"], ": ")
				reasons["; "+text[:min(len(text), most)]] = true
			}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(reasons)), ""), nil
}

// hasRoots reports whether every webhook of a configuration has roots.
func hasRoots(o *unstructured.Unstructured) bool {
	hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	for _, hook := range hooks {
		fields, _ := hook.(map[string]any)
		if bundle, _, _ := unstructured.NestedString(fields, "clientConfig", "caBundle"); bundle == "" {
			return false
		}
	}
	return err == nil
}

// probe sends an object that is not valid, as a dry run: the webhook must refuse it.
func (i *installer) probe(ctx context.Context) (string, error) {
	revision := i.Revision
	if revision == "" {
		revision = "default"
	}
	body := map[string]any{
		"apiVersion": "networking.istio.io/v1", "kind": "Gateway",
		"metadata": map[string]any{"name": "outrigger-install-probe", "namespace": i.Namespace, "labels": map[string]any{revisionKey: revision}},
		"spec":     map[string]any{},
	}
	gateways := resource{version: "networking.istio.io/v1", plural: "gateways", namespaced: true}
	err := i.call(ctx, http.MethodPost, gateways.path(i.Namespace, ""), url.Values{"dryRun": {"All"}}, body, nil)
	switch {
	case err == nil:
		return "the API server does not call the webhook yet", nil
	case strings.Contains(err.Error(), "denied the request"):
		return "", nil
	}
	return err.Error(), nil
}
