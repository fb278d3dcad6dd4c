package discovery

import "fmt"

func (k *keeper) dump() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := ""
	for key, c := range k.circles {
		out += fmt.Sprintf("circle %v atOnce %d epoch %d\n", key, c.atOnce, c.epoch)
		for _, sc := range c.scopes {
			out += fmt.Sprintf(" scope %p streams %d\n", sc, sc.streams)
			for it, h := range sc.holds {
				out += fmt.Sprintf("  %v hash %x unknown %v lent %v", it, h.hash, h.unknown, h.lent)
				if h.good != nil {
					out += fmt.Sprintf(" good %x", h.good.Hash)
				}
				if h.variant != nil {
					out += fmt.Sprintf(" state %d reason %q against %v", h.variant.state, h.variant.reason, h.variant.against)
					if cl := h.variant.claim; cl != nil {
						out += fmt.Sprintf(" claimed by %s", cl.by.id())
					}
				}
				out += "\n"
			}
		}
		for st := range c.streams {
			out += fmt.Sprintf(" stream %s scope %p odd %v open %v claim %v returned %v seq %d\n", st.id(), st.place.scope, st.place.odd, st.place.open, st.place.claim != nil, st.returned, st.place.sequence)
			for typeURL, sub := range st.subs {
				out += fmt.Sprintf("   %s waiting %v refused %v at==given %v over %v nonce %s\n", shortType(typeURL), sub.waiting, sub.refused, sub.at != nil, sub.over, sub.nonce)
			}
		}
	}
	return out
}
