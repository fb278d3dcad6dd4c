// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// sight is what one look at an entry goes by.
type sight struct {
	key    model.Key
	stored *model.Config // nil if there is none
	conn   *connection   // the newest here; nil if there is none
	claim  string
	left   string
	// lasted is for how long the entry says of its proxy what it does; young is
	// how long proxies still have to come back after the start.
	lasted, young time.Duration
}

// reconcile brings an entry to what is connected here, and returns the time after
// which that is to be looked at again; 0 means when something happens.
func (c *Controller) reconcile(ctx context.Context, key model.Key) (time.Duration, error) {
	stored := c.store.Get(key)
	c.mu.Lock()
	c.observe(key, stored)
	it := c.work[key]
	s := sight{
		key: key, stored: stored, conn: it.newest(), claim: it.claim, left: it.left,
		lasted: time.Since(it.since), young: time.Until(c.started.Add(returning)),
	}
	c.mu.Unlock()
	if s.conn == nil {
		return c.release(ctx, s)
	}
	return c.hold(ctx, s)
}

// hold sees to the entry of a proxy that is connected here.
func (c *Controller) hold(ctx context.Context, s sight) (time.Duration, error) {
	peer := s.conn.peer
	group := c.store.Get(groupOf(peer.Proxy))
	mine := isRegistered(s.stored) && s.owns()
	if kind, why := forbidden(peer, group); why != "" {
		c.refuseOnce(s, kind, why)
		if mine {
			return 0, c.remove(ctx, s, why)
		}
		return 0, nil
	}
	if s.stored != nil && !mine {
		c.refuseOnce(s, refusedName, fmt.Sprintf("%s is the entry of %s, which is not this proxy: remove it if nobody needs it", s.key, describe(s.stored)))
		return 0, nil
	}
	now := entryOf(s.key, peer, group)
	if other := c.inTheWay(s, now); other != nil {
		why := fmt.Sprintf("its address belongs to %s, the entry of %s: remove that if nobody needs it", other.Key, describe(other))
		c.refuseOnce(s, refusedAddress, why)
		if mine {
			return 0, c.remove(ctx, s, why)
		}
		return 0, nil
	}
	if s.stored == nil {
		return c.create(ctx, s, now)
	}
	return c.claim(ctx, s, now)
}

// owns reports whether an entry is that of the proxy which is connected.
func (s sight) owns() bool {
	proxy := s.conn.peer.Proxy
	return s.stored.Annotations[groupAnnotation] == proxy.AutoRegisterGroup && fits(s.stored, proxy) &&
		parse(entrySpec(s.stored).GetAddress()) == addressOf(s.conn.peer)
}

// describe says whose an entry is.
func describe(c *model.Config) string {
	spec := entrySpec(c)
	text := fmt.Sprintf("service account %q of namespace %s at %s", spec.GetServiceAccount(), c.Namespace, spec.GetAddress())
	if !isRegistered(c) {
		text += ", which did not come by registration"
	}
	return text
}

// forbidden says why a proxy may not be in its group; no reason means that it
// may.
func forbidden(p model.ConnectedProxy, group *model.Config) (kind, why string) {
	g := groupSpec(group)
	if g == nil {
		return refusedGroup, "its WorkloadGroup does not exist: create it"
	}
	if account := accountOf(g); account != p.Proxy.ServiceAccount {
		return refusedIdentity, fmt.Sprintf("its service account is %q, that of the workloads of the group is %q: correct spec.template.serviceAccount, or the account of the agent", p.Proxy.ServiceAccount, account)
	}
	return "", ""
}

// inTheWay returns the entry because of which there can be no entry: an address is
// one workload's. Where two came together, the older one stays.
func (c *Controller) inTheWay(s sight, now *model.Config) *model.Config {
	// Held while looking: else the end of the other could be heard between that
	// and the note which says who waits for it.
	c.mu.Lock()
	defer c.mu.Unlock()
	other := c.index.claimant(now)
	if other == nil || s.stored != nil && (!isRegistered(other) || model.Older(s.stored, other) < 0) {
		return nil
	}
	if c.blocked[other.Key] == nil {
		c.blocked[other.Key] = map[model.Key]bool{}
	}
	c.blocked[other.Key][s.key] = true
	return other
}

// refuseOnce tells that a proxy is not registered, if that is new.
func (c *Controller) refuseOnce(s sight, kind, why string) {
	c.mu.Lock()
	it := c.work[s.key]
	known := it.told == why
	it.told = why
	c.mu.Unlock()
	if !known {
		c.refuse(s.conn.peer.Proxy, kind, why)
	}
}

// create writes a new entry.
func (c *Controller) create(ctx context.Context, s sight, now *model.Config) (time.Duration, error) {
	if !c.allowed(identityOf(s.conn.peer.Proxy)) {
		c.refuseOnce(s, refusedFlood, "too many of its service account come at once; it is registered as soon as it is its turn")
		return time.Second, nil
	}
	at := stamp("")
	now.Annotations[controllerAnnotation], now.Annotations[connectedAnnotation] = c.cfg.Instance, at
	err := c.write(ctx, func(ctx context.Context) error {
		_, err := c.store.Create(ctx, now)
		return err
	})
	if err != nil {
		return 0, c.refused(s, err)
	}
	c.metrics.success.Inc()
	c.claimed(s, at)
	c.log.Info("a workload is registered", "proxy", s.conn.peer.Proxy.ID, "namespace", s.key.Namespace, "name", s.key.Name)
	return 0, nil
}

// allowed takes one new entry of an identity.
func (c *Controller) allowed(id identity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.identities[id]
	return b == nil || b.fresh.Allow()
}

// claim writes into the entry that its proxy is connected here, if that is news,
// and what has changed of the group and of the proxy.
func (c *Controller) claim(ctx context.Context, s sight, now *model.Config) (time.Duration, error) {
	a := s.stored.Annotations
	connected := a[connectedAnnotation] != "" && a[disconnectedAnnotation] == ""
	here := connected && s.claimsIt(c.cfg.Instance)
	if connected && !here && s.conn.claimed && s.lasted < c.cfg.Orphaned {
		return c.cfg.Orphaned - s.lasted, nil // it has connected to another replica since
	}
	next := s.stored.Clone()
	at := a[connectedAnnotation]
	if !here {
		at = stamp(at)
		next.Annotations[controllerAnnotation], next.Annotations[connectedAnnotation] = c.cfg.Instance, at
		delete(next.Annotations, disconnectedAnnotation)
	}
	renew(next, now)
	if config.SameContent(s.stored, next) {
		c.claimed(s, at)
		return 0, nil
	}
	if err := c.update(ctx, next); err != nil {
		return 0, c.refused(s, err)
	}
	c.metrics.updates.Inc()
	c.claimed(s, at)
	return 0, nil
}

// claimsIt reports whether an entry says what this replica wrote into it. The
// name alone would not be enough: another may have the same.
func (s sight) claimsIt(instance string) bool {
	a := s.stored.Annotations
	return s.claim != "" && a[controllerAnnotation] == instance && a[connectedAnnotation] == s.claim
}

// claimed notes that this replica has an entry.
func (c *Controller) claimed(s sight, at string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it := c.work[s.key]
	it.claim, it.left, it.told, s.conn.claimed = at, "", "", true
}

// refused makes of a write that the rules for objects forbid a proxy that is not
// registered: trying again would change nothing.
func (c *Controller) refused(s sight, err error) error {
	if !errors.Is(err, config.ErrInvalid) {
		return err
	}
	c.refuseOnce(s, refusedInvalid, err.Error())
	return nil
}

// release sees to the entry of a proxy that is not connected here.
func (c *Controller) release(ctx context.Context, s sight) (time.Duration, error) {
	if !isRegistered(s.stored) {
		if s.claim != "" && s.stored == nil && s.lasted < returning {
			return returning - s.lasted, nil // it was created, and may not be visible yet
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.work[s.key].claim = ""
		return 0, nil
	}
	a := s.stored.Annotations
	if at := a[disconnectedAnnotation]; at != "" {
		wait := c.cfg.Grace
		if at != s.left { // another replica has marked it, and removes it
			wait = max(c.question(), s.lasted+s.young)
		}
		if s.lasted < wait {
			return wait - s.lasted, nil
		}
		return 0, c.remove(ctx, s, "its proxy has left and did not come back")
	}
	own := s.claimsIt(c.cfg.Instance)
	if wait := c.orphanage(s); !own && wait > 0 {
		return wait, nil
	}
	next, at := s.stored.Clone(), stamp("")
	delete(next.Annotations, connectedAnnotation)
	next.Annotations[disconnectedAnnotation] = at
	if err := c.update(ctx, next); err != nil {
		return 0, err
	}
	c.metrics.unregistered.Inc()
	if !own {
		c.log.Info("a workload is marked as gone, unless a replica of the control plane still has it", "namespace", s.key.Namespace, "name", s.key.Name,
			"reason", "the replica that its entry names has given no sign for a long time, or has restarted")
		return c.cfg.Grace, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work[s.key].left = at
	return c.cfg.Grace, nil
}

// question is how long a replica has to show that it has an entry, and after it
// is removed if nobody does.
func (c *Controller) question() time.Duration { return 2*c.cfg.Grace + slack }

// orphanage returns how much longer an entry of a proxy that is not connected here
// is believed; 0 means no longer. What this replica wrote before it restarted is,
// while proxies may come back. Another replica is asked by one entry first: if it
// takes that back, it lives, and all its entries are right.
func (c *Controller) orphanage(s sight) time.Duration {
	instance := s.stored.Annotations[controllerAnnotation]
	if instance == c.cfg.Instance {
		return max(returning-s.lasted, s.young, 0)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	it, other := c.work[s.key], c.replicas[instance]
	if other == nil {
		other = &replicaState{} // the entry has changed since it was read
	}
	last := it.since
	if other.seen.After(last) {
		last = other.seen
	}
	if wait := c.cfg.Orphaned - time.Since(last); wait > 0 {
		return wait
	}
	if other.asked.After(other.seen) {
		return max(c.question()-time.Since(other.asked), 0)
	}
	other.asked = time.Now()
	return 0
}

// stamp returns a time for an annotation, which is not that of before.
func stamp(before string) string {
	now := time.Now().UTC()
	if text := now.Format(time.RFC3339Nano); text != before {
		return text
	}
	return now.Add(time.Nanosecond).Format(time.RFC3339Nano)
}

// remove removes an entry as it was seen.
func (c *Controller) remove(ctx context.Context, s sight, why string) error {
	err := c.write(ctx, func(ctx context.Context) error { return c.store.Delete(ctx, s.key, s.stored.ResourceVersion) })
	if err != nil {
		return err
	}
	c.metrics.deletes.Inc()
	c.log.Info("a workload is no longer registered", "namespace", s.key.Namespace, "name", s.key.Name, "reason", why)
	return nil
}

func (c *Controller) update(ctx context.Context, next *model.Config) error {
	return c.write(ctx, func(ctx context.Context) error {
		_, err := c.store.Update(ctx, next)
		return err
	})
}

// write waits until it may write.
func (c *Controller) write(ctx context.Context, do func(context.Context) error) error {
	if err := c.writes.Wait(ctx); err != nil {
		return fmt.Errorf("waiting to write: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return do(ctx)
}
