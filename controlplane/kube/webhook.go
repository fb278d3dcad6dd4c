// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// rejectedGateway is the name of an object that a working webhook rejects.
	rejectedGateway = "invalid-gateway"
	// webhookRetry and webhookLongest are the minimum and maximum delay between attempts; they
	// equal Istio's.
	webhookRetry   = 100 * time.Millisecond
	webhookLongest = time.Minute
)

// WebhookConfig is the configuration of a Webhook.
type WebhookConfig struct {
	Client *Client
	// Revision selects the configurations with this value of the label istio.io/rev.
	Revision string
	// Namespace is the namespace of the control plane, in which the probe is created.
	Namespace string
	// Validating and Mutating select the kinds of configurations that are updated.
	Validating, Mutating bool
	// Bundle returns the roots of the control plane's certificate as PEM. Changed returns a channel
	// that is closed when they change; it is called before Bundle.
	Bundle  func() []byte
	Changed func() <-chan struct{}
	Logger  *slog.Logger // nil means slog.Default()
}

// Webhook maintains the webhook configurations of this control plane: it sets the roots that the API
// server uses to verify the webhooks. Once the validating webhook has rejected a probe, it sets its
// failure policy to Fail, so that no object is written without validation. A webhook whose rules
// include other kinds than those of the mesh keeps its policy, so that an outage does not block
// other programs. The failure policies of mutating webhooks stay as they are.
//
// It requires permission to list, watch and update the configurations, and to create Gateways of
// Istio in the namespace (only as a dry run).
type Webhook struct {
	cfg WebhookConfig
	log *slog.Logger
}

// NewWebhook returns a Webhook. It returns an error if the configuration is invalid.
func NewWebhook(cfg WebhookConfig) (*Webhook, error) {
	if cfg.Client == nil || cfg.Bundle == nil || cfg.Changed == nil {
		return nil, errors.New("webhook configuration: it needs a cluster, the roots and notifications of their changes")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Webhook{cfg: cfg, log: cfg.Logger}, nil
}

// Run maintains the configurations until ctx is done.
func (w *Webhook) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1) // a token means that a configuration may need an update
	nudge := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	labels, api := revisionLabel+"="+w.cfg.Revision, w.cfg.Client.api
	var keeps []func() (again bool)
	if w.cfg.Validating {
		changed := func(*admissionv1.ValidatingWebhookConfiguration) { nudge() }
		all, _, err := selected[*admissionv1.ValidatingWebhookConfiguration, *admissionv1.ValidatingWebhookConfigurationList]{
			source: api.validating, kind: "ValidatingWebhookConfiguration", example: &admissionv1.ValidatingWebhookConfiguration{},
			labels: labels, set: changed, gone: changed,
		}.follow(ctx, &running, w.log)
		if err != nil {
			return err
		}
		keeps = append(keeps, func() bool { return eachOf(ctx, all.all(), w.keep) })
	}
	if w.cfg.Mutating {
		changed := func(*admissionv1.MutatingWebhookConfiguration) { nudge() }
		all, _, err := selected[*admissionv1.MutatingWebhookConfiguration, *admissionv1.MutatingWebhookConfigurationList]{
			source: api.mutating, kind: "MutatingWebhookConfiguration", example: &admissionv1.MutatingWebhookConfiguration{},
			labels: labels, set: changed, gone: changed,
		}.follow(ctx, &running, w.log)
		if err != nil {
			return err
		}
		keeps = append(keeps, func() bool { return eachOf(ctx, all.all(), w.keepMutating) })
	}

	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(webhookRetry), backoff.WithMaxInterval(webhookLongest), backoff.WithMaxElapsedTime(0))
	retry := time.NewTimer(0)
	retry.Stop()
	for {
		changed := w.cfg.Changed()
		// Cases: ctx is done; the roots changed; a configuration changed; it is time for another
		// attempt.
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-wake:
		case <-retry.C:
		}
		again := false
		for _, keep := range keeps {
			again = keep() || again
		}
		retry.Stop()
		if again {
			retry.Reset(pause.NextBackOff())
		} else {
			pause.Reset()
		}
	}
}

// eachOf calls keep for each configuration and reports whether one needs another attempt.
func eachOf[T any](ctx context.Context, all []T, keep func(context.Context, T) bool) (again bool) {
	for _, one := range all {
		again = keep(ctx, one) || again
	}
	return again
}

// keep updates one configuration and reports whether another attempt is needed. The object is
// shared with the informer.
func (w *Webhook) keep(ctx context.Context, shared *admissionv1.ValidatingWebhookConfiguration) (again bool) {
	next := shared.DeepCopy()
	bundle := w.cfg.Bundle()
	if len(bundle) == 0 {
		return true
	}
	for i := range next.Webhooks {
		next.Webhooks[i].ClientConfig.CABundle = bundle
	}
	if !sameBundles(shared, next) {
		return w.update(ctx, next, "the roots of the webhook are set") || w.open(next)
	}
	if !w.open(next) {
		return false
	}
	if err := w.refuses(ctx); err != nil {
		w.log.Debug("the webhook does not respond yet; objects are written unchecked", "name", next.Name, "err", err)
		return true
	}
	fail := admissionv1.Fail
	for i := range next.Webhooks {
		if ownRules(next.Webhooks[i].Rules) {
			next.Webhooks[i].FailurePolicy = &fail
		}
	}
	return w.update(ctx, next, "the webhook works: objects that cannot be checked are refused from now on")
}

func sameBundles(a, b *admissionv1.ValidatingWebhookConfiguration) bool {
	return slices.EqualFunc(a.Webhooks, b.Webhooks, func(x, y admissionv1.ValidatingWebhook) bool {
		return bytes.Equal(x.ClientConfig.CABundle, y.ClientConfig.CABundle)
	})
}

// open reports whether a webhook of the configuration should fail closed but does not yet.
func (w *Webhook) open(c *admissionv1.ValidatingWebhookConfiguration) bool {
	return slices.ContainsFunc(c.Webhooks, func(h admissionv1.ValidatingWebhook) bool {
		return (h.FailurePolicy == nil || *h.FailurePolicy != admissionv1.Fail) && ownRules(h.Rules)
	})
}

// ownRules reports whether the rules include only kinds of the mesh. For API groups with other
// kinds, such as networking.k8s.io with NetworkPolicies, the rules must name the kinds.
func ownRules(rules []admissionv1.RuleWithOperations) bool {
	own := map[string]bool{}
	for _, s := range schema.All() {
		own[s.Group+"/"+s.Plural] = true
		if strings.HasSuffix(s.Group, ".istio.io") {
			own[s.Group+"/*"] = true
		}
	}
	return len(rules) > 0 && !slices.ContainsFunc(rules, func(r admissionv1.RuleWithOperations) bool {
		return len(r.APIGroups) == 0 || len(r.Resources) == 0 || slices.ContainsFunc(r.APIGroups, func(group string) bool {
			return slices.ContainsFunc(r.Resources, func(resource string) bool { return !own[group+"/"+resource] })
		})
	})
}

// update writes a configuration. On a conflict it does nothing, because the watch reports the new
// version.
func (w *Webhook) update(ctx context.Context, c *admissionv1.ValidatingWebhookConfiguration, done string) (again bool) {
	_, err := w.cfg.Client.api.validating.Update(ctx, c, metav1.UpdateOptions{FieldManager: fieldManager})
	return w.updated(ctx, c.Name, done, err)
}

// updated logs the result of an update and reports whether another attempt is needed.
func (w *Webhook) updated(ctx context.Context, name, done string, err error) (again bool) {
	switch {
	case err == nil:
		w.log.Info(done, "name", name)
		return false
	case ctx.Err() != nil, apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false
	}
	w.log.Warn("the configuration of the webhook cannot be written", "name", name, "err", err)
	return true
}

// injectorSuffix ends the names of the webhooks that inject proxies.
const injectorSuffix = "sidecar-injector.istio.io"

// keepMutating sets the roots in the injection webhooks of one configuration and reports whether
// another attempt is needed. The object is shared with the informer.
func (w *Webhook) keepMutating(ctx context.Context, shared *admissionv1.MutatingWebhookConfiguration) (again bool) {
	bundle := w.cfg.Bundle()
	if len(bundle) == 0 {
		return true
	}
	next, changed := shared.DeepCopy(), false
	for i := range next.Webhooks {
		h := &next.Webhooks[i]
		if strings.HasSuffix(h.Name, injectorSuffix) && !bytes.Equal(h.ClientConfig.CABundle, bundle) {
			h.ClientConfig.CABundle, changed = bundle, true
		}
	}
	if !changed {
		return false
	}
	_, err := w.cfg.Client.api.mutating.Update(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
	return w.updated(ctx, next.Name, "the roots of the injection webhook are set", err)
}

// refuses returns nil if the webhook makes the API server reject an invalid object.
func (w *Webhook) refuses(ctx context.Context) error {
	gateway := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	gateway.SetAPIVersion("networking.istio.io/v1")
	gateway.SetKind("Gateway")
	gateway.SetName(rejectedGateway)
	gateway.SetNamespace(w.cfg.Namespace)
	gateway.SetLabels(map[string]string{revisionLabel: w.cfg.Revision})
	gateways := w.cfg.Client.objects.Resource(kubeschema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "gateways"})
	_, err := gateways.Namespace(w.cfg.Namespace).Create(ctx, gateway, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: fieldManager})
	switch {
	case err == nil:
		return errors.New("the API server accepted an invalid object")
	case strings.Contains(err.Error(), "denied the request"):
		return nil
	case apierrors.IsNotFound(err), meansNoDryRun(err):
		return nil // nothing to write yet, or a probe is not possible
	}
	return err
}

// meansNoDryRun reports whether the error means that another webhook of the cluster does not
// support dry runs.
func meansNoDryRun(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}
