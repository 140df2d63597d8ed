package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"klbr/internal/engine"
	"klbr/internal/klbr"
)

// batchMax bounds the events of one commit.
const batchMax = 512

// session is one session that is alive. Its loop goroutine alone touches state
// and the fields below it.
type session struct {
	rt   *Runtime
	name string
	log  *slog.Logger
	feed *feed

	// life ends with ctx; every goroutine of the session is counted in work.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	inbox inbox

	mu      sync.Mutex // guards replies, nextTo, trouble
	replies map[engine.ReplyTo]reply
	nextTo  engine.ReplyTo
	trouble string

	// The loop's own.
	state   *engine.State
	broken  error // the state could not be loaded since a commit failed
	backoff time.Duration
	fence   uint64 // counts reloads: an event from before one is dropped
	ledgers map[string]*engine.Ledger
	calls   map[int64]context.CancelFunc // requests under way, by seq of model.called
	kernel  *kernelSlot
	workers map[int64]*policySlot // by epoch
	running map[int64]int64       // cell → seq of its cell.started
}

// reply answers one caller. opened is the seq that began a recorded call.
type reply func(value any, err error)

// item is one thing for the loop: an event, or a question about the committed
// state.
type item struct {
	event engine.Event
	fence uint64 // 0: never fenced
	query func(*engine.State)
	// source and id name the admission key that the event needs looked up.
	source, id string
	to         engine.ReplyTo
}

// inbox is an unbounded queue: what is admitted is bounded where it comes in,
// and an outcome must never be lost.
type inbox struct {
	mu     sync.Mutex
	items  []item
	closed bool
	signal chan struct{}
}

func (q *inbox) put(it item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.items = append(q.items, it)
	select {
	case q.signal <- struct{}{}:
	default:
	}
	return true
}

func (q *inbox) take(n int) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.items))
	got := q.items[:n:n]
	q.items = q.items[n:]
	if len(q.items) > 0 {
		select {
		case q.signal <- struct{}{}:
		default:
		}
	}
	return got
}

func (q *inbox) close() []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	rest := q.items
	q.items = nil
	return rest
}

func (rt *Runtime) newSession(name string, st *engine.State) *session {
	ctx, cancel := context.WithCancel(rt.ctx)
	s := &session{
		rt: rt, name: name, log: rt.opt.Log.With("session", name),
		feed: newFeed(rt.opt.Store, name, st.Session.Seq),
		ctx:  ctx, cancel: cancel,
		inbox:   inbox{signal: make(chan struct{}, 1)},
		replies: map[engine.ReplyTo]reply{},
		state:   st, fence: 1,
		ledgers: map[string]*engine.Ledger{},
		calls:   map[int64]context.CancelFunc{},
		workers: map[int64]*policySlot{},
		running: map[int64]int64{},
	}
	return s
}

// expect registers a caller.
func (s *session) expect(r reply) engine.ReplyTo {
	if r == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextTo++
	s.replies[s.nextTo] = r
	return s.nextTo
}

// answer tells a caller, once.
func (s *session) answer(to engine.ReplyTo, v any, err error) {
	s.mu.Lock()
	r := s.replies[to]
	delete(s.replies, to)
	s.mu.Unlock()
	if r != nil {
		r(v, err)
	}
}

// answerAll tells every caller that waits.
func (s *session) answerAll(err error) {
	s.mu.Lock()
	all := s.replies
	s.replies = map[engine.ReplyTo]reply{}
	s.mu.Unlock()
	for _, r := range all {
		r(nil, err)
	}
}

// post hands the loop an event. An outcome of something that was begun under a
// fence is dropped when the session was reloaded meanwhile.
func (s *session) post(fence uint64, ev engine.Event) {
	s.inbox.put(item{event: ev, fence: fence})
}

// ask hands the loop an event that somebody waits for.
func (s *session) ask(ev func(engine.ReplyTo) engine.Event, r reply) {
	s.askKeyed("", "", ev, r)
}

func (s *session) askKeyed(source, id string, ev func(engine.ReplyTo) engine.Event, r reply) {
	to := s.expect(r)
	if !s.inbox.put(item{event: ev(to), source: source, id: id, to: to}) {
		s.answer(to, nil, errEnding())
	}
}

func errEnding() error {
	return klbr.Errorf(klbr.CodeDraining, "the daemon ends").WithHint("try again when it has started anew")
}

// query runs f on the committed state and returns when it has.
func (s *session) query(ctx context.Context, f func(*engine.State) error) error {
	done := make(chan error, 1)
	if !s.inbox.put(item{query: func(st *engine.State) {
		if st == nil {
			done <- s.troubled()
			return
		}
		done <- f(st)
	}}) {
		return errEnding()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return errEnding()
	}
}

func (s *session) troubled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return klbr.Errorf(klbr.CodeStorageFailed, "session %s waits for its store: %s", s.name, s.trouble).
		WithHint("klbr-daemon doctor says what to mend; it goes on by itself")
}

func (s *session) setTrouble(text string) {
	s.mu.Lock()
	s.trouble = text
	s.mu.Unlock()
}

// loop steps the session until its context ends.
func (s *session) loop() {
	defer s.feed.close()
	for {
		var retry <-chan time.Time
		if s.broken != nil {
			retry = time.After(s.backoff)
		}
		select {
		case <-s.inbox.signal:
		case <-retry:
		case <-s.ctx.Done():
			for _, it := range s.inbox.close() {
				s.refuse(it, errEnding())
			}
			s.shutdown()
			s.answerAll(errEnding())
			return
		}
		if s.broken != nil && !s.recover() {
			for _, it := range s.inbox.take(batchMax) {
				s.refuse(it, s.troubled())
			}
			continue
		}
		s.batch(s.inbox.take(batchMax))
	}
}

func (s *session) refuse(it item, err error) {
	if it.query != nil {
		it.query(nil)
	}
	s.answer(it.to, nil, err)
}

// batch steps the items, commits what they recorded and then acts.
func (s *session) batch(items []item) {
	known, err := s.lookUp(items)
	if err != nil {
		// Nothing was stepped: only those that needed the look-up are refused.
		s.log.Error("look up admission keys", "error", err)
	}
	var out engine.Out
	for _, it := range items {
		if it.event == nil || (it.fence != 0 && it.fence != s.fence) {
			continue
		}
		ev := it.event
		if it.id != "" {
			if err != nil {
				s.answer(it.to, nil, err)
				continue
			}
			ev = s.withDup(it, known)
		}
		step := engine.Step(s.state, s.rt.now(), ev)
		out.Records = append(out.Records, step.Records...)
		out.Actions = append(out.Actions, step.Actions...)
	}
	if s.commit(out) {
		s.perform(out)
	}
	for _, it := range items {
		if it.query != nil {
			if s.broken != nil {
				it.query(nil)
			} else {
				it.query(s.state)
			}
		}
	}
}

// lookUp finds what the items' keys were admitted as before.
func (s *session) lookUp(items []item) (map[[2]string]klbr.AdmissionRow, error) {
	bySource := map[string][]string{}
	for _, it := range items {
		if it.id != "" {
			bySource[it.source] = append(bySource[it.source], it.id)
		}
	}
	known := map[[2]string]klbr.AdmissionRow{}
	for source, ids := range bySource {
		rows, err := s.rt.opt.Store.Admissions(s.ctx, s.name, source, ids)
		if err != nil {
			return nil, storageFailed(err)
		}
		for id, row := range rows {
			known[[2]string{source, id}] = row
		}
	}
	return known, nil
}

func (s *session) withDup(it item, known map[[2]string]klbr.AdmissionRow) engine.Event {
	dup := s.state.Admitted(it.source, it.id) // in this very batch
	if dup == nil {
		if row, ok := known[[2]string{it.source, it.id}]; ok {
			dup = &row
		}
	}
	switch ev := it.event.(type) {
	case engine.Admit:
		ev.Dup = dup
		return ev
	case engine.PersonCell:
		ev.Dup = dup
		return ev
	}
	return it.event
}

// commit makes the step durable. When it fails everything that waits is told,
// and the state is loaded anew.
func (s *session) commit(out engine.Out) bool {
	if len(out.Records) == 0 {
		return true
	}
	changes := s.state.TakeChanges()
	faultPoint("before commit " + string(out.Records[0].Kind))
	stored, err := s.rt.externalize(s.ctx, out.Records)
	if err == nil {
		err = s.rt.opt.Store.Commit(context.WithoutCancel(s.ctx), klbr.Batch{Session: s.name, Records: stored, Changes: changes})
	}
	if err != nil {
		s.log.Error("commit failed", "error", err, "records", len(out.Records))
		s.fail(storageFailed(err))
		return false
	}
	faultPoint("after commit " + string(out.Records[len(out.Records)-1].Kind))
	s.publish(stored, out.Records)
	return true
}

func storageFailed(err error) error {
	var e *klbr.Error
	if errors.As(err, &e) && e.Code == klbr.CodeStorageFailed {
		return err
	}
	return klbr.Errorf(klbr.CodeStorageFailed, "nothing was kept: %v", err).WithHint("klbr-daemon doctor says what to mend, then try again")
}

// fail throws memory away. Whatever was under way is fenced.
func (s *session) fail(err error) {
	s.broken = err
	s.setTrouble(klbr.AsError(err).Message)
	s.fence++
	s.state = nil
	for _, cancel := range s.calls {
		cancel()
	}
	clear(s.calls)
	clear(s.ledgers)
	clear(s.running)
	s.feed.reload()
	for epoch := range s.workers {
		s.endWorker(epoch)
	}
	s.answerAll(err)
	s.recover()
}

// recover loads the state from the store and takes up what it left open. It
// says whether the session is well again.
func (s *session) recover() bool {
	err := func() error {
		snap, err := s.rt.opt.Store.Load(s.ctx, s.name)
		if err != nil {
			return err
		}
		st := engine.FromSnapshot(snap)
		out := engine.Step(st, s.rt.now(), engine.Load{
			Life: s.rt.opt.Life, Version: s.rt.opt.Version, Skills: s.rt.opt.SkillsRevision, Cause: engine.LoadCommitFailed,
		})
		stored, err := s.rt.externalize(s.ctx, out.Records)
		if err != nil {
			return err
		}
		if len(stored) > 0 {
			b := klbr.Batch{Session: s.name, Records: stored, Changes: st.TakeChanges()}
			if err := s.rt.opt.Store.Commit(context.WithoutCancel(s.ctx), b); err != nil {
				return err
			}
		}
		s.state, s.broken, s.backoff = st, nil, 0
		s.setTrouble("")
		s.publish(stored, out.Records)
		s.perform(out)
		return nil
	}()
	if err != nil {
		s.state, s.broken = nil, err
		s.backoff = min(max(2*s.backoff, 100*time.Millisecond), 5*time.Second)
		s.setTrouble(klbr.AsError(err).Message)
	}
	return err == nil
}

// publish keeps the ledgers with the log and shows the records to subscribers.
// full are the records with their bodies, stored those with references.
func (s *session) publish(stored, full []klbr.Record) {
	var settled []int64
	for _, r := range full {
		switch r.Kind {
		case "model.called", "model.answered", "model.failed", "cell.started", "cell.finished":
		default:
			continue
		}
		body, err := r.Decode()
		if err != nil {
			s.log.Error("decode own record", "error", err)
			continue
		}
		switch b := body.(type) {
		case *klbr.ModelAnswered:
			settled = append(settled, b.Called)
		case *klbr.ModelFailed:
			settled = append(settled, b.Called)
		case *klbr.CellStarted:
			s.running[b.Cell] = r.Seq
		case *klbr.CellFinished:
			if !b.Late {
				settled = append(settled, s.running[b.Cell])
				delete(s.running, b.Cell)
			}
		}
		if l := s.ledgers[r.Lane]; l != nil {
			if err := l.Apply(r); err != nil {
				s.log.Error("ledger", "error", err)
				delete(s.ledgers, r.Lane)
			}
		}
	}
	s.feed.publish(stored, settled)
}

// ledger is the lane's conversation, from memory or from the log.
func (s *session) ledger(lane string) (*engine.Ledger, error) {
	if l := s.ledgers[lane]; l != nil {
		return l, nil
	}
	l := &engine.Ledger{}
	row := s.state.Lanes[lane]
	if row == nil {
		return nil, fmt.Errorf("no lane %s", lane)
	}
	after := row.LedgerFrom - 1
	for {
		rs, err := s.rt.opt.Store.Lane(s.ctx, s.name, lane, after, []klbr.Kind{"model.called", "model.answered"}, 500)
		if err != nil {
			return nil, storageFailed(err)
		}
		for _, r := range rs {
			if r, err = s.rt.hydrate(r); err != nil {
				return nil, err
			}
			if r.Lane == lane {
				if err := l.Apply(r); err != nil {
					return nil, err
				}
			}
			after = r.Seq
		}
		if len(rs) < 500 {
			break
		}
	}
	s.ledgers[lane] = l
	return l, nil
}
