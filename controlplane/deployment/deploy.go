// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deployment

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// deploy writes the objects of a Gateway that are not as they were written last, and removes those
// that it had before.
func (c *Controller) deploy(ctx context.Context, g *model.Config, spec *gatewayv1.GatewaySpec) error {
	if g.UID == "" {
		return nil // of a file: its objects would have no owner
	}
	if !gatewayapi.Manages(spec) {
		if c.usesOwn(g, spec) {
			return nil
		}
		return c.prune(ctx, g, nil)
	}
	injector := c.cfg.Injector()
	if injector == nil {
		return errors.New("the configuration of the injector, which has the image of the proxies, has not been read yet")
	}
	added, known := c.cfg.Added(g.Namespace, g.Name)
	if !known {
		return errors.New("the ListenerSets of the Gateway have not been read yet")
	}
	overlays, err := c.parameters(ctx, g, spec)
	if err != nil {
		return err
	}
	want, err := Render(Input{Gateway: g, Pod: injector.Managed, Overlays: overlays, Added: added, HTTP3: c.cfg.HTTP3})
	if err != nil {
		return &wrongError{err, true}
	}
	write, done, err := c.changed(g, want)
	if err != nil {
		return err
	}
	if len(write) > 0 {
		err = c.write(ctx, g, write, done)
		c.remember(g.Key, done)
	}
	if err != nil {
		return err
	}
	return c.prune(ctx, g, want)
}

// write writes objects for a Gateway and records them in done.
func (c *Controller) write(ctx context.Context, g *model.Config, objects []*unstructured.Unstructured, done written) error {
	// The store may have another cluster's Gateway, or one that is gone: its objects would have no owner.
	live, err := c.cfg.Cluster.Get(ctx, schema.FromAPIVersionAndKind(apiVersion(g), "Gateway"), g.Namespace, g.Name)
	if err != nil {
		return fmt.Errorf("read the Gateway: %w", err)
	}
	if live == nil || string(live.GetUID()) != g.UID || live.GetDeletionTimestamp() != nil {
		return nil
	}
	// All are checked before one is written: half a gateway serves nobody.
	var mine []*unstructured.Unstructured
	for _, want := range objects {
		o := want.DeepCopy()
		there, err := c.cfg.Cluster.Get(ctx, o.GroupVersionKind(), o.GetNamespace(), o.GetName())
		switch {
		case err != nil:
			return fmt.Errorf("read the %s %s: %w", o.GetKind(), o.GetName(), err)
		case there == nil:
		case owned(there, g):
			o.SetResourceVersion(there.GetResourceVersion())
			keepSelector(o, there)
		case o.GetKind() == "ServiceAccount" && g.Annotations[gatewayapi.AccountAnnotation] != "":
			continue // the user's own
		default:
			return &wrongError{fmt.Errorf("nothing is deployed: the %s %s has another owner; remove it, or name the Service of your own gateway in spec.addresses with the type Hostname", o.GetKind(), o.GetName()), false}
		}
		mine = append(mine, o)
	}
	for _, o := range mine {
		now, err := c.cfg.Cluster.Apply(ctx, o)
		if err != nil {
			return fmt.Errorf("write the %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		done[idOf(o)] = state{done[idOf(o)].want, c.cfg.Fingerprint(now)}
	}
	return nil
}

// owned reports whether an object was made for a Gateway, by this controller or by Istio's.
func owned(o *unstructured.Unstructured, g *model.Config) bool {
	if slices.ContainsFunc(o.GetOwnerReferences(), func(r owner) bool { return r.UID == uid(g) && r.Kind == "Gateway" }) {
		return true
	}
	labels := o.GetLabels()
	return len(o.GetOwnerReferences()) == 0 && labels[ManagedLabel] == ManagedValue && labels[gatewayapi.NameLabel] == g.Name
}

// keepSelector keeps the selector of a Deployment, which nobody can change: an older Istio had one
// more label in it.
func keepSelector(want, there *unstructured.Unstructured) {
	if want.GetKind() != "Deployment" {
		return
	}
	old, found, err := unstructured.NestedStringMap(there.Object, "spec", "selector", "matchLabels")
	if err != nil || !found {
		return
	}
	for label, value := range old {
		if label == "istio.io/gateway-name" {
			for _, path := range [][]string{{"spec", "selector", "matchLabels", label}, {"spec", "template", "metadata", "labels", label}} {
				_ = unstructured.SetNestedField(want.Object, value, path...) // both maps exist
			}
		}
	}
}

// usesOwn reports whether the addresses of a Gateway name a Service that was deployed for it.
func (c *Controller) usesOwn(g *model.Config, spec *gatewayv1.GatewaySpec) bool {
	return slices.ContainsFunc(c.cfg.Owned(g.UID), func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "Service" && slices.ContainsFunc(spec.Addresses, func(a gatewayv1.GatewaySpecAddress) bool {
			host, _, _ := strings.Cut(a.Value, ".")
			return host == o.GetName()
		})
	})
}

// prune removes the objects of a Gateway that are not wanted any more: it is run by somebody else
// now, or it has another class, name or ConfigMap. Service accounts stay until the Gateway goes,
// because Pods that end use theirs.
func (c *Controller) prune(ctx context.Context, g *model.Config, want []*unstructured.Unstructured) error {
	for _, o := range c.cfg.Owned(g.UID) {
		same := func(w *unstructured.Unstructured) bool {
			return w.GroupVersionKind() == o.GroupVersionKind() && w.GetName() == o.GetName()
		}
		if o.GetNamespace() != g.Namespace || o.GetKind() == "ServiceAccount" || slices.ContainsFunc(want, same) {
			continue
		}
		if err := c.cfg.Cluster.Delete(ctx, o); err != nil {
			return fmt.Errorf("remove the %s %s, which the Gateway no longer needs: %w", o.GetKind(), o.GetName(), err)
		}
		c.log.Info("removed an object that a Gateway no longer needs", "kind", o.GetKind(), "namespace", o.GetNamespace(), "name", o.GetName())
	}
	return nil
}

// written has the states in which objects of a Gateway were written.
type written map[id]state

// id is an object of a Gateway.
type id struct{ kind, name string }

func idOf(o *unstructured.Unstructured) id { return id{o.GetKind(), o.GetName()} }

// state is the hash of an object as it was rendered, and the fingerprint that it had then.
type state struct {
	want        [sha256.Size]byte
	fingerprint string
}

// changed returns the objects that must be written, because they are rendered otherwise than before
// or because somebody changed them, and what is known to be written, with the hashes of all.
func (c *Controller) changed(g *model.Config, want []*unstructured.Unstructured) (write []*unstructured.Unstructured, done written, err error) {
	c.mu.Lock()
	before := c.written[g.Key]
	c.mu.Unlock()
	there := map[id]string{}
	for _, o := range c.cfg.Owned(g.UID) {
		there[idOf(o)] = c.cfg.Fingerprint(o)
	}
	done = written{}
	for _, o := range want {
		doc, err := json.Marshal(o.Object)
		if err != nil {
			return nil, nil, err
		}
		now := state{sha256.Sum256(doc), there[idOf(o)]}
		if now.fingerprint == "" || before[idOf(o)] != now {
			write = append(write, o)
			now.fingerprint = ""
		}
		done[idOf(o)] = now
	}
	return write, done, nil
}

func (c *Controller) remember(key model.Key, done written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue == nil || done == nil {
		delete(c.written, key)
		return
	}
	c.written[key] = done
}

// Kinds returns the kinds of objects that are deployed.
func Kinds() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for _, k := range kinds() {
		out = append(out, k.GroupVersionKind)
	}
	return out
}
