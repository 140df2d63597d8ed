package runtime

import (
	"context"
	"slices"
	"sync"
	"unicode/utf8"

	"klbr/internal/klbr"
)

const (
	feedRecent  = 1024     // records that a feed keeps in memory
	updateMax   = 500      // records in one update
	deltaMax    = 64 << 10 // bytes of text in one delta
	liveTextMax = 1 << 20  // bytes of live text kept per open call
)

// feed is where a session's subscribers pull from: the newest records, and the
// text of open calls.
type feed struct {
	store   Store
	session string

	mu     sync.Mutex // guards all below
	seq    int64      // newest committed record
	recent []klbr.Record
	live   []*liveCall // in order of their calls
	subs   map[*Subscription]struct{}
	closed bool
	next   chan struct{} // closed at the next change; nil: nobody waits
}

// liveCall is an open call's text so far.
type liveCall struct {
	turn      int64
	lane      string
	call      int64
	kind      string
	text      liveText
	reasoning liveText
	restarts  int
}

// liveText keeps the newest bytes of a growing text; base is the offset of the
// first.
type liveText struct {
	base  int64
	bytes []byte
}

func (t *liveText) end() int64 { return t.base + int64(len(t.bytes)) }

func (t *liveText) append(s string) {
	t.bytes = append(t.bytes, s...)
	if over := len(t.bytes) - liveTextMax; over > 0 {
		over = min(over+liveTextMax/4, len(t.bytes)) // drop in large steps
		for over < len(t.bytes) && !utf8.RuneStart(t.bytes[over]) {
			over++
		}
		t.bytes = slices.Clone(t.bytes[over:])
		t.base += int64(over)
	}
}

// from gives the text from offset on, at most deltaMax bytes, cut between
// runes, and where it really begins.
func (t *liveText) from(offset int64) (int64, string) {
	offset = max(offset, t.base)
	if offset >= t.end() {
		return offset, ""
	}
	b := t.bytes[offset-t.base:]
	if len(b) > deltaMax {
		cut := deltaMax
		for cut > deltaMax-utf8.UTFMax && !utf8.RuneStart(b[cut]) {
			cut--
		}
		b = b[:cut]
	}
	return offset, string(b)
}

func newFeed(store Store, session string, seq int64) *feed {
	return &feed{store: store, session: session, seq: seq, subs: map[*Subscription]struct{}{}}
}

// publish makes committed records visible. The calls that they settle have no
// live text any more.
func (f *feed) publish(records []klbr.Record, settled []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range records {
		if r.Seq <= f.seq {
			continue
		}
		f.recent = append(f.recent, r)
		f.seq = r.Seq
	}
	if over := len(f.recent) - feedRecent; over > feedRecent/4 {
		f.recent = slices.Clone(f.recent[over:])
	}
	f.forget(settled)
	f.wake()
}

// reload drops all live text: what was under way is fenced.
func (f *feed) reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live = nil
	f.wake()
}

func (f *feed) forget(calls []int64) {
	f.live = slices.DeleteFunc(f.live, func(c *liveCall) bool { return slices.Contains(calls, c.call) })
}

func (f *feed) wake() {
	if f.next != nil {
		close(f.next)
		f.next = nil
	}
	for s := range f.subs {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// open begins a call's live text.
func (f *feed) open(c liveCall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget([]int64{c.call})
	f.live = append(f.live, &c)
}

// write appends to a call's live text. A call that is settled is ignored.
func (f *feed) write(call int64, d ModelDelta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.live {
		if c.call != call {
			continue
		}
		if d.Restart {
			c.text, c.reasoning = liveText{}, liveText{}
			c.restarts++
		}
		c.text.append(d.Text)
		c.reasoning.append(d.Reasoning)
		f.wake()
		return
	}
}

// Subscription gives a session's records after a cursor, each once and in
// order, and the text of open calls. It is pulled by one goroutine.
type Subscription struct {
	feed  *feed
	lanes []string
	wake  chan struct{}
	upto  int64
	live  bool
	sent  map[int64]sentText
}

// sentText is how far a call's texts were sent.
type sentText struct {
	text, reasoning int64
	restarts        int
}

func (f *feed) subscribe(lanes []string, after Cursor, incarnation string) (*Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seq := after.Seq
	if seq < 0 {
		seq = max(0, f.seq+seq)
	} else if seq > f.seq || (after.Incarnation != "" && after.Incarnation != incarnation) {
		err := klbr.Errorf(klbr.CodeCursor, "the cursor %d is of another history or lies beyond record %d", after.Seq, f.seq).
			WithHint("begin again from the start, or from -n for the newest n records")
		err.Seq, err.Current = f.seq, incarnation
		return nil, err
	}
	s := &Subscription{feed: f, lanes: lanes, wake: make(chan struct{}, 1), upto: seq, sent: map[int64]sentText{}}
	f.subs[s] = struct{}{}
	return s, nil
}

// Upto is the cursor: every record up to it was given.
func (s *Subscription) Upto() int64 { return s.upto }

// Close ends it.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	delete(s.feed.subs, s)
}

// Next blocks until there is something to give, or ctx or the session ends.
func (s *Subscription) Next(ctx context.Context) (Update, error) {
	for {
		u, behind, err := s.take()
		if err != nil {
			return u, err
		}
		if behind {
			return s.page(ctx)
		}
		if len(u.Records) > 0 || u.Live || len(u.Deltas) > 0 || u.Upto > s.upto {
			s.upto = u.Upto
			return u, nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Update{}, ctx.Err()
		}
	}
}

// take gives what memory has; behind says that the next record is only in the
// store.
func (s *Subscription) take() (u Update, behind bool, err error) {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return u, false, klbr.Errorf(klbr.CodeDraining, "the daemon ends").WithHint("reconnect with the cursor")
	}
	u.Upto = s.upto
	if s.upto < f.seq {
		if len(f.recent) == 0 || f.recent[0].Seq > s.upto+1 {
			return u, true, nil
		}
		next := f.recent[s.upto+1-f.recent[0].Seq:]
		next = next[:min(len(next), updateMax)]
		u.Records, u.Upto = s.filter(next), next[len(next)-1].Seq
		return u, false, nil
	}
	if !s.live {
		s.live, u.Live = true, true
		return u, false, nil
	}
	u.Deltas = s.deltas()
	return u, false, nil
}

func (s *Subscription) deltas() []Delta {
	var out []Delta
	open := make(map[int64]sentText, len(s.feed.live))
	for _, c := range s.feed.live {
		sent := s.sent[c.call]
		if sent.restarts != c.restarts {
			sent = sentText{restarts: c.restarts}
		}
		if s.wants(c.lane) {
			off, text := c.text.from(sent.text)
			roff, reasoning := c.reasoning.from(sent.reasoning)
			if text != "" || reasoning != "" {
				d := Delta{Turn: c.turn, Lane: c.lane, Call: c.call, Kind: c.kind, Offset: off, Text: text}
				if reasoning != "" {
					d.Reasoning = &DeltaText{Offset: roff, Text: reasoning}
				}
				out = append(out, d)
				sent.text, sent.reasoning = off+int64(len(text)), roff+int64(len(reasoning))
			}
		}
		open[c.call] = sent
	}
	s.sent = open
	return out
}

func (s *Subscription) wants(lane string) bool {
	return s.lanes == nil || lane == "" || slices.Contains(s.lanes, lane)
}

func (s *Subscription) filter(rs []klbr.Record) []klbr.Record {
	if s.lanes == nil {
		return rs
	}
	var out []klbr.Record
	for _, r := range rs {
		if s.wants(r.Lane) {
			out = append(out, r)
		}
	}
	return out
}

// page gives the next records from the store.
func (s *Subscription) page(ctx context.Context) (Update, error) {
	rs, err := s.feed.store.Records(ctx, s.feed.session, s.upto, updateMax)
	if err != nil {
		return Update{}, err
	}
	if len(rs) == 0 {
		return Update{}, klbr.Errorf(klbr.CodeInternal, "records after %d of session %s are missing", s.upto, s.feed.session)
	}
	s.upto = rs[len(rs)-1].Seq
	return Update{Records: s.filter(rs), Upto: s.upto}, nil
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.wake()
}

// changed is closed at the next change of the feed.
func (f *feed) changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = make(chan struct{})
	}
	return f.next
}
