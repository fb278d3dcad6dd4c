// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/inject"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	workers = 4
	// firstPause and longPause are the minimum and maximum delay between attempts.
	firstPause, longPause = 200 * time.Millisecond, 2 * time.Minute
	// eventPause is the delay of a check that an event causes after a failure.
	eventPause = 2 * time.Second
	// parametersEvery is how often the ConfigMap of a Gateway is read: they are not watched, because
	// that needs all ConfigMaps of the cluster.
	parametersEvery = 10 * time.Second
	tryFor          = 30 * time.Second // for all requests of one Gateway
)

// Cluster reads and writes objects of a cluster.
type Cluster interface {
	// Get returns an object, or nil if it does not exist.
	Get(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error)
	// Apply writes an object by server-side apply and returns it as Owned does. With a resource
	// version only that version of the object is changed, and fields of others are taken over.
	// Without one the object is created, and one that exists is an error.
	Apply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error)
	// Delete removes this very object, if it still exists.
	Delete(ctx context.Context, object *unstructured.Unstructured) error
}

// Config configures a [Controller].
type Config struct {
	Store   config.Reader // with Gateways and GatewayClasses
	Cluster Cluster
	// Follow calls changed with the namespace and the name of each owner of a kind whose objects
	// changed, until ctx is done. Owned returns the objects of which a Gateway with a UID is the owner, with their
	// metadata only, once Follow has called ready.
	Follow func(ctx context.Context, owner string, ready func(), changed func(namespace, gateway string)) error
	Owned  func(uid string) []*unstructured.Unstructured
	// Fingerprint returns the hash of what somebody can write in an object of Owned.
	Fingerprint func(*unstructured.Unstructured) string
	// Mine reports whether a Gateway without a revision of its own belongs to this control plane.
	Mine func(namespace string) bool
	// Injector returns the injector in force, nil if there is none yet.
	Injector func() *inject.Injector
	// Added returns the listeners that ListenerSets add to a Gateway, and whether they are known.
	Added func(namespace, gateway string) ([]gatewayv1.Listener, bool)
	// HTTP3 is true if gateways serve HTTP/3.
	HTTP3 bool
	// OnFault is called after the result of Fault changed.
	OnFault func(model.Key)
	Logger  *slog.Logger
}

// Controller deploys the proxies of Gateways.
type Controller struct {
	cfg Config
	log *slog.Logger

	mu sync.Mutex // guards the fields below
	// queue contains Gateways without duplicates; nil unless this replica leads.
	queue  workqueue.TypedRateLimitingInterface[model.Key]
	faults map[model.Key]gatewayapi.Fault
	// written has what was written for each Gateway that this replica has deployed.
	written map[model.Key]written
}

// New returns a Controller. It does nothing until Run is called.
func New(cfg Config) (*Controller, error) {
	if cfg.Store == nil || cfg.Cluster == nil || cfg.Follow == nil || cfg.Owned == nil || cfg.Fingerprint == nil || cfg.Mine == nil || cfg.Injector == nil || cfg.Added == nil || cfg.OnFault == nil {
		return nil, errors.New("deployment of gateways: it needs objects, a cluster, an injector, and a receiver of faults")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{cfg: cfg, log: cfg.Logger, faults: map[model.Key]gatewayapi.Fault{}, written: map[model.Key]written{}}, nil
}

// Fault returns why the proxies of a Gateway are not deployed, as far as this replica knows.
func (c *Controller) Fault(namespace, name string) gatewayapi.Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faults[keyOf(namespace, name)]
}

func keyOf(namespace, name string) model.Key {
	return model.Key{Kind: model.KubernetesGateway, Namespace: namespace, Name: name}
}

// Hear processes events of the store.
func (c *Controller) Hear(events []config.Event) {
	for _, e := range events {
		o := e.Current()
		switch {
		case o.Kind == model.GatewayClass, o.Kind == model.ProxyConfig:
			c.Check("")
		case o.Kind != model.KubernetesGateway, e.Type == config.Updated && sameGateway(e.Old, e.New):
		default:
			c.check(o.Key)
		}
	}
}

// sameGateway reports whether only the status of a Gateway differs.
func sameGateway(a, b *model.Config) bool {
	return a.UID == b.UID && a.Generation == b.Generation && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// Check checks all Gateways of a namespace, or of all namespaces if it is empty.
func (c *Controller) Check(namespace string) {
	for _, o := range c.cfg.Store.List(model.KubernetesGateway, namespace) {
		c.check(o.Key)
	}
}

// CheckOne checks one Gateway.
func (c *Controller) CheckOne(namespace, name string) { c.check(keyOf(namespace, name)) }

func (c *Controller) check(key model.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.queue == nil:
	case c.queue.NumRequeues(key) > 0: // it fails: events must not cause an attempt each
		c.queue.AddAfter(key, eventPause)
	default:
		c.queue.Add(key)
	}
}

// Run deploys until ctx is done. Only one replica must run it.
func (c *Controller) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[model.Key](firstPause, longPause))
	c.lead(queue)
	defer c.lead(nil)
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, queue.ShutDown)()
	ready := make(chan struct{})
	g.Go(func() error { // reads the objects, feeds the queue
		return c.cfg.Follow(ctx, "Gateway", func() { close(ready) }, func(namespace, gateway string) { c.check(keyOf(namespace, gateway)) })
	})
	for range workers {
		g.Go(func() error { // takes Gateways from the queue, writes objects
			select {
			case <-ctx.Done():
			case <-ready:
				c.work(ctx, queue)
			}
			return nil
		})
	}
	c.Check("")
	return g.Wait()
}

func (c *Controller) lead(queue workqueue.TypedRateLimitingInterface[model.Key]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = queue
	clear(c.faults) // another replica knows them
	clear(c.written)
}

func (c *Controller) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[model.Key]) {
	for {
		key, end := queue.Get()
		if end {
			return
		}
		again, err := c.bring(ctx, key)
		queue.Done(key)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			queue.Forget(key)
			if again > 0 {
				queue.AddAfter(key, again)
			}
		default:
			if n := queue.NumRequeues(key); (n == 0 || n == 5) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // somebody else wrote meanwhile
				c.log.Warn("a Gateway is not deployed completely; retrying", "namespace", key.Namespace, "name", key.Name, "attempt", n+1, "err", err)
			}
			queue.AddRateLimited(key)
		}
	}
}

// bring deploys one Gateway and records its fault. again is when it must be checked again without
// an event, zero for never.
func (c *Controller) bring(ctx context.Context, key model.Key) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	g, spec := c.gateway(key)
	if g == nil {
		c.record(key, gatewayapi.Fault{})
		c.remember(key, nil)
		return 0, nil
	}
	if spec.Infrastructure != nil && spec.Infrastructure.ParametersRef != nil {
		again = parametersEvery
	}
	err = c.deploy(ctx, g, spec)
	var wrong *wrongError
	switch {
	case errors.As(err, &wrong):
		c.record(key, gatewayapi.Fault{Parameters: wrong.parameters, Message: wrong.Error()})
		if wrong.parameters {
			return again, nil // until the Gateway or its ConfigMap changes
		}
	case err == nil:
		c.record(key, gatewayapi.Fault{})
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err): // by labels, annotations or the ConfigMap
		c.record(key, gatewayapi.Fault{Parameters: true, Message: "the proxies cannot be deployed: " + err.Error()})
	case apierrors.IsForbidden(err):
		c.record(key, gatewayapi.Fault{Message: "the proxies cannot be deployed: " + err.Error()})
	}
	return again, err // other errors may pass
}

// wrongError is an error that a user must resolve.
type wrongError struct {
	error
	parameters bool
}

// record stores the fault of a Gateway.
func (c *Controller) record(key model.Key, fault gatewayapi.Fault) {
	c.mu.Lock()
	before := c.faults[key]
	if fault == (gatewayapi.Fault{}) {
		delete(c.faults, key)
	} else {
		c.faults[key] = fault
	}
	c.mu.Unlock()
	if before != fault {
		c.cfg.OnFault(key)
	}
}

// gateway returns a Gateway of a class of this controller, or nil.
func (c *Controller) gateway(key model.Key) (*model.Config, *gatewayv1.GatewaySpec) {
	g := c.cfg.Store.Get(key)
	if g == nil {
		return nil, nil
	}
	spec, ok := g.Spec.(*gatewayv1.GatewaySpec)
	if !ok || g.Labels["istio.io/rev"] == "" && !c.cfg.Mine(g.Namespace) {
		return nil, nil
	}
	class := c.cfg.Store.Get(model.Key{Kind: model.GatewayClass, Name: string(spec.GatewayClassName)})
	if class == nil {
		return nil, nil
	}
	of, ok := class.Spec.(*gatewayv1.GatewayClassSpec)
	if !ok || of.ControllerName != gatewayapi.Controller || of.ParametersRef != nil {
		return nil, nil
	}
	return g, spec
}

// parameters returns the data of the ConfigMap of a Gateway, nil if it has none.
func (c *Controller) parameters(ctx context.Context, g *model.Config, spec *gatewayv1.GatewaySpec) (map[string]string, error) {
	if spec.Infrastructure == nil || spec.Infrastructure.ParametersRef == nil {
		return nil, nil
	}
	ref := spec.Infrastructure.ParametersRef
	if ref.Group != "" || ref.Kind != "ConfigMap" {
		return nil, &wrongError{fmt.Errorf("spec.infrastructure.parametersRef names a %s/%s: name a ConfigMap, of the group \"\"", ref.Group, ref.Kind), true}
	}
	found, err := c.cfg.Cluster.Get(ctx, configMapKind(), g.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("read the ConfigMap %s of spec.infrastructure.parametersRef: %w", ref.Name, err)
	}
	if found == nil {
		return nil, &wrongError{fmt.Errorf("spec.infrastructure.parametersRef: there is no ConfigMap %s in the namespace of the Gateway", ref.Name), true}
	}
	data, _, err := unstructured.NestedStringMap(found.Object, "data")
	if err != nil {
		return nil, err
	}
	return data, nil
}

func configMapKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
}
