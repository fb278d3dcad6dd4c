// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/csaupgrade"
)

// deployer is the name in managedFields of what is deployed. Its fields are not those that other
// parts of this program write.
const deployer = fieldManager + "-deployment"

const tagLabel = "istio.io/tag"

// DeploymentsConfig is the configuration of Deployments.
type DeploymentsConfig struct {
	Client   *Client
	Kinds    []kubeschema.GroupVersionKind // that are followed
	Selector string                        // labels of all objects that are followed
	Revision string                        // of this control plane; empty means "default"
	// OnTags is called after the result of Serves may have changed.
	OnTags func()
	Logger *slog.Logger // nil means slog.Default()
}

// Deployments reads, writes and follows the objects that are deployed for others. It requires
// permission to get, list, watch, create, patch and delete their kinds, to get the objects that they
// are deployed for, and to list and watch MutatingWebhookConfigurations.
type Deployments struct {
	cfg DeploymentsConfig

	mu     sync.RWMutex // guards the fields below
	caches []informer[*unstructured.Unstructured]
	tags   map[string]string // of this revision, by the name of the configuration that has them
}

// NewDeployments returns Deployments. It returns an error if the configuration is invalid.
func NewDeployments(cfg DeploymentsConfig) (*Deployments, error) {
	if cfg.Client == nil || cfg.Selector == "" || cfg.OnTags == nil {
		return nil, errors.New("deployments: they need a cluster, a selector, and a receiver of tags")
	}
	if cfg.Revision == "" {
		cfg.Revision = "default"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Deployments{cfg: cfg, tags: map[string]string{}}, nil
}

func (d *Deployments) resource(kind kubeschema.GroupVersionKind) dynamic.NamespaceableResourceInterface {
	return d.cfg.Client.objects.Resource(kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s"))
}

// Get returns an object, or nil if it does not exist.
func (d *Deployments) Get(ctx context.Context, kind kubeschema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	o, err := d.resource(kind).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// Apply writes an object by server-side apply and returns it as Owned does. With a resource version
// it changes only that version of the object, and takes over fields of others. Without one it
// creates the object; one that exists is an error. A field of a wrong type is a bad request.
func (d *Deployments) Apply(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	at := d.resource(o.GroupVersionKind()).Namespace(o.GetNamespace())
	if o.GetResourceVersion() == "" {
		// An apply would change an object that somebody else created meanwhile.
		now, err := at.Create(ctx, o, metav1.CreateOptions{FieldManager: deployer})
		if err != nil {
			return nil, err
		}
		o.SetResourceVersion(now.GetResourceVersion())
	}
	for {
		now, err := at.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: deployer, Force: true})
		if apierrors.IsInternalError(err) && strings.Contains(err.Error(), "typed patch object") {
			return nil, apierrors.NewBadRequest(err.Error()) // the API server blames itself
		}
		if err != nil {
			return nil, err
		}
		// The fields of a create would stay when they are not applied any more.
		if !slices.ContainsFunc(now.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == deployer && e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == ""
		}) {
			return stripped(now)
		}
		claim, err := csaupgrade.UpgradeManagedFieldsPatch(now, sets.New(deployer), deployer)
		if err != nil {
			return nil, err
		}
		if now, err = at.Patch(ctx, o.GetName(), types.JSONPatchType, claim, metav1.PatchOptions{FieldManager: deployer}); err != nil {
			return nil, err
		}
		o.SetResourceVersion(now.GetResourceVersion())
	}
}

// Delete removes this very object, and what depends on it. It does nothing if the object is gone.
func (d *Deployments) Delete(ctx context.Context, o *unstructured.Unstructured) error {
	uid, background := o.GetUID(), metav1.DeletePropagationBackground
	err := d.resource(o.GroupVersionKind()).Namespace(o.GetNamespace()).
		Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or another object has its name
	}
	return err
}

// Owned returns the metadata of the followed objects that have an owner with a UID.
func (d *Deployments) Owned(uid string) []*unstructured.Unstructured {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []*unstructured.Unstructured
	for _, c := range d.caches {
		found, _ := c.GetIndexer().ByIndex(byOwner, uid) // the index exists
		for _, o := range found {
			call(func(object *unstructured.Unstructured) { out = append(out, object) }, o)
		}
	}
	return out
}

// byOwner is the index of the followed objects by the UIDs of their owners.
const byOwner = "owner"

func ownersOf(o any) (uids []string, _ error) {
	call(func(object *unstructured.Unstructured) {
		for _, owner := range object.GetOwnerReferences() {
			uids = append(uids, string(owner.UID))
		}
	}, o)
	return uids, nil
}

// Serves reports whether a value of the label istio.io/rev means this control plane: its revision,
// or one of its tags.
func (d *Deployments) Serves(revision string) bool {
	if revision == d.cfg.Revision {
		return true
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, tag := range d.tags {
		if tag == revision {
			return true
		}
	}
	return false
}

// Follow follows the objects and the tags until ctx is done. It calls ready once all are read, and
// changed with the namespace and the owner of a kind of each object that somebody changed.
func (d *Deployments) Follow(ctx context.Context, owner string, ready func(), changed func(namespace, owner string)) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var caches []informer[*unstructured.Unstructured]
	var synced []cache.InformerSynced
	for _, kind := range d.cfg.Kinds {
		seen := map[string]string{} // one goroutine calls the functions below
		tell := func(o *unstructured.Unstructured) {
			for _, r := range o.GetOwnerReferences() {
				if r.Kind == owner {
					changed(o.GetNamespace(), r.Name)
				}
			}
		}
		c, s, err := selected[*unstructured.Unstructured, *unstructured.UnstructuredList]{
			source: untypedReader{d.resource(kind)}, kind: kind.Kind, example: &unstructured.Unstructured{}, labels: d.cfg.Selector, strip: stripDeployed,
			indexers: cache.Indexers{byOwner: ownersOf},
			set: func(o *unstructured.Unstructured) {
				key, now := o.GetNamespace()+"/"+o.GetName(), Fingerprint(o)
				if seen[key] != now {
					seen[key] = now
					tell(o)
				}
			},
			gone: func(o *unstructured.Unstructured) {
				delete(seen, o.GetNamespace()+"/"+o.GetName())
				tell(o)
			},
		}.follow(ctx, &running, d.cfg.Logger)
		if err != nil {
			return err
		}
		caches, synced = append(caches, c), append(synced, s)
	}
	tagged, err := d.followTags(ctx, &running)
	if err != nil {
		return err
	}
	if !cache.WaitForCacheSync(ctx.Done(), append(synced, tagged)...) {
		return nil
	}
	d.mu.Lock()
	d.caches = caches
	d.mu.Unlock()
	ready()
	<-ctx.Done()
	return nil
}

// followTags follows the webhook configurations of this revision, whose labels are its tags.
func (d *Deployments) followTags(ctx context.Context, running *sync.WaitGroup) (cache.InformerSynced, error) {
	put := func(name, tag string) {
		d.mu.Lock()
		before := d.tags[name]
		if tag == "" {
			delete(d.tags, name)
		} else {
			d.tags[name] = tag
		}
		d.mu.Unlock()
		if before != tag {
			d.cfg.OnTags()
		}
	}
	_, synced, err := selected[*admissionv1.MutatingWebhookConfiguration, *admissionv1.MutatingWebhookConfigurationList]{
		source: d.cfg.Client.api.mutating, kind: "MutatingWebhookConfiguration", example: &admissionv1.MutatingWebhookConfiguration{},
		labels: revisionLabel + "=" + d.cfg.Revision + "," + tagLabel,
		strip: func(o any) (any, error) {
			if c, ok := o.(*admissionv1.MutatingWebhookConfiguration); ok {
				return &admissionv1.MutatingWebhookConfiguration{ObjectMeta: stripMeta(c.ObjectMeta)}, nil
			}
			return o, nil
		},
		set:  func(c *admissionv1.MutatingWebhookConfiguration) { put(c.Name, c.Labels[tagLabel]) },
		gone: func(c *admissionv1.MutatingWebhookConfiguration) { put(c.Name, "") },
	}.follow(ctx, running, d.cfg.Logger)
	return synced, err
}

// untypedReader reads objects without a Go type.
type untypedReader struct {
	dynamic.NamespaceableResourceInterface
}

// Get returns an object.
func (r untypedReader) Get(ctx context.Context, name string, o metav1.GetOptions) (*unstructured.Unstructured, error) {
	return r.NamespaceableResourceInterface.Get(ctx, name, o)
}

// deployedKey is the field of a stripped object with the hash of what somebody can write.
const deployedKey = "outrigger.dev/fingerprint"

// stripDeployed returns the metadata of an object, and a hash of what is not kept, apart from its
// status.
func stripDeployed(o any) (any, error) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		return stripped(u)
	}
	return o, nil
}

func stripped(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	content := maps.Clone(u.Object) // of a ServiceAccount, it is not in spec
	for _, field := range []string{"apiVersion", "kind", "metadata", "status"} {
		delete(content, field)
	}
	doc, err := json.Marshal([]any{content, u.GetLabels(), u.GetAnnotations(), u.GetOwnerReferences(), u.GetUID()})
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	out := &unstructured.Unstructured{Object: map[string]any{deployedKey: fmt.Sprintf("%x", sha256.Sum256(doc))}}
	out.SetGroupVersionKind(u.GroupVersionKind())
	out.SetNamespace(u.GetNamespace())
	out.SetName(u.GetName())
	out.SetUID(u.GetUID())
	out.SetResourceVersion(u.GetResourceVersion())
	out.SetOwnerReferences(u.GetOwnerReferences())
	return out, nil
}

// Fingerprint returns the hash of what somebody can write in an object of Owned.
func Fingerprint(o *unstructured.Unstructured) string {
	s, _, _ := unstructured.NestedString(o.Object, deployedKey) // always there
	return s
}
