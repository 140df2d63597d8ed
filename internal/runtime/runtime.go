package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"klbr/internal/engine"
	"klbr/internal/klbr"
)

// Options are what a runtime is made of. All but Log, Now and Effects are
// needed.
type Options struct {
	Store     Store
	Artifacts Artifacts
	Models    Models
	Workers   Workers
	Effects   map[string]Transport // by effect type

	Version        string
	Life           string // random, of this run of the daemon
	Release        string // that new sessions begin with
	Workspace      string // of the default session
	SkillsRevision string
	Facts          []string // sentences for the contract message
	Budgets        TurnBudgets

	// CheckWorkspace says whether a session may work in dir, and gives its
	// absolute path.
	CheckWorkspace func(dir string) (string, error)

	Now func() time.Time
	Log *slog.Logger
}

// Runtime is every session of a store.
type Runtime struct {
	opt    Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // session loops

	mu       sync.Mutex // guards sessions and draining
	sessions map[string]*session
	draining bool
}

// Start opens the default session where it is new, and takes up what an
// earlier life left open. It returns when that is recorded.
func Start(ctx context.Context, opt Options) (*Runtime, error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	rt := &Runtime{opt: opt, sessions: map[string]*session{}}
	rt.ctx, rt.cancel = context.WithCancel(context.WithoutCancel(ctx))
	open, err := opt.Store.OpenWork(ctx)
	if err != nil {
		rt.cancel()
		return nil, err
	}
	if _, _, err := rt.open(ctx, klbr.DefaultSession, opt.Workspace, true); err != nil {
		rt.Close(ctx)
		return nil, err
	}
	for _, name := range open {
		if _, err := rt.session(ctx, name); err != nil {
			rt.Close(ctx)
			return nil, err
		}
	}
	return rt, nil
}

// Drain stops the admission of new work and waits until no turn runs, or ctx
// ends. What waits in a queue stays there for the next life.
func (rt *Runtime) Drain(ctx context.Context) {
	rt.mu.Lock()
	rt.draining = true
	all := rt.live()
	rt.mu.Unlock()
	for _, s := range all {
		for busy := true; busy && ctx.Err() == nil; {
			changed := s.feed.changed()
			err := s.query(ctx, func(st *engine.State) error {
				busy = len(st.Turns) > 0 || st.OpenCell() != nil
				return nil
			})
			if err != nil || !busy {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// Close parks what runs, ends every process and returns when all goroutines
// have ended. ctx bounds the wait for the record of it.
func (rt *Runtime) Close(ctx context.Context) {
	rt.mu.Lock()
	rt.draining = true
	all := rt.live()
	rt.mu.Unlock()
	var parked sync.WaitGroup
	for _, s := range all {
		parked.Add(1)
		s.post(0, engine.Stopping{Life: rt.opt.Life, Reason: "signal"})
		go func() {
			defer parked.Done()
			s.query(ctx, func(*engine.State) error { return nil })
		}()
	}
	parked.Wait()
	rt.cancel()
	rt.wg.Wait()
}

func (rt *Runtime) live() []*session {
	var all []*session
	for _, s := range rt.sessions {
		all = append(all, s)
	}
	return all
}

func (rt *Runtime) now() int64 { return rt.opt.Now().UnixMicro() }

// session gives a session that exists, and brings it to life.
func (rt *Runtime) session(ctx context.Context, name string) (*session, error) {
	if err := klbr.CheckName("session", name); err != nil {
		return nil, err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if s := rt.sessions[name]; s != nil {
		return s, nil
	}
	if rt.ctx.Err() != nil {
		return nil, errEnding()
	}
	snap, err := rt.opt.Store.Load(ctx, name)
	if err != nil {
		if errors.Is(err, &klbr.Error{Code: klbr.CodeNotFound}) {
			return nil, klbr.Errorf(klbr.CodeNotFound, "there is no session %q", name).WithHint("klbr open " + name)
		}
		return nil, err
	}
	return rt.bring(engine.FromSnapshot(snap), engine.Load{
		Life: rt.opt.Life, Version: rt.opt.Version, Skills: rt.opt.SkillsRevision,
		Cause: engine.LoadStart, Announce: name == klbr.DefaultSession,
	})
}

// bring starts a session's loop with its first events done. rt.mu is held.
func (rt *Runtime) bring(st *engine.State, events ...engine.Event) (*session, error) {
	s := rt.newSession(st.Session.Session, st)
	var out engine.Out
	for _, ev := range events {
		step := engine.Step(st, rt.now(), ev)
		out.Records = append(out.Records, step.Records...)
		out.Actions = append(out.Actions, step.Actions...)
	}
	stored, err := rt.externalize(s.ctx, out.Records)
	if err == nil && len(stored) > 0 {
		err = rt.opt.Store.Commit(s.ctx, klbr.Batch{Session: s.name, Records: stored, Changes: st.TakeChanges()})
	}
	if err != nil {
		s.cancel()
		return nil, storageFailed(err)
	}
	s.publish(stored, out.Records)
	s.perform(out)
	rt.sessions[s.name] = s
	rt.wg.Add(1)
	go func() {
		defer rt.wg.Done()
		s.loop()
	}()
	return s, nil
}

func (rt *Runtime) open(ctx context.Context, name, workspace string, keep bool) (*session, bool, error) {
	s, err := rt.session(ctx, name)
	switch {
	case err == nil && (keep || workspace == ""):
		return s, false, nil
	case err == nil:
		dir, err := rt.opt.CheckWorkspace(workspace)
		if err != nil {
			return nil, false, err
		}
		var has string
		if err := s.query(ctx, func(st *engine.State) error { has = st.Session.Workspace; return nil }); err != nil {
			return nil, false, err
		}
		if has != dir {
			return nil, false, klbr.Errorf(klbr.CodeExists, "session %s is there already and works in %s", name, has).
				WithHint("open one with another name")
		}
		return s, false, nil
	case !errors.Is(err, &klbr.Error{Code: klbr.CodeNotFound}):
		return nil, false, err
	}
	if rt.isDraining() {
		return nil, false, errEnding()
	}
	if workspace == "" {
		workspace = rt.opt.Workspace
	}
	dir, err := rt.opt.CheckWorkspace(workspace)
	if err != nil {
		return nil, false, err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if s := rt.sessions[name]; s != nil { // another client was faster
		return s, false, nil
	}
	s, err = rt.bring(engine.NewState(name),
		engine.Open{Workspace: dir, Release: rt.opt.Release},
		engine.Load{
			Life: rt.opt.Life, Version: rt.opt.Version, Skills: rt.opt.SkillsRevision,
			Cause: engine.LoadStart, Announce: name == klbr.DefaultSession,
		})
	return s, err == nil, err
}

func (rt *Runtime) isDraining() bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.draining
}

// Info is what hello tells.
func (rt *Runtime) Info(ctx context.Context) Info {
	i := Info{Version: rt.opt.Version, Incarnation: rt.opt.Store.Incarnation(), Life: rt.opt.Life, State: "ready"}
	if rt.isDraining() {
		i.State = "draining"
	}
	i.Model = rt.opt.Models.Status(ctx)
	i.Python = rt.opt.Workers.Status(ctx)
	return i
}

// Sessions lists every session, by name.
func (rt *Runtime) Sessions(ctx context.Context) ([]SessionStatus, error) {
	rows, err := rt.opt.Store.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]SessionStatus, 0, len(rows))
	for _, row := range rows {
		rt.mu.Lock()
		s := rt.sessions[row.Session]
		rt.mu.Unlock()
		if s == nil { // nothing is open in it
			out = append(out, rowStatus(row))
			continue
		}
		status, err := s.status(ctx)
		if err != nil {
			status = rowStatus(row)
			status.Trouble = klbr.AsError(err).Message
		}
		out = append(out, status)
	}
	return out, nil
}

// Open gives a session, new or not, and whether it is new.
func (rt *Runtime) Open(ctx context.Context, name, workspace string) (SessionStatus, bool, error) {
	s, opened, err := rt.open(ctx, name, workspace, false)
	if err != nil {
		return SessionStatus{}, false, err
	}
	status, err := s.status(ctx)
	return status, opened, err
}

// Status is a session's state now.
func (rt *Runtime) Status(ctx context.Context, name string) (SessionStatus, error) {
	s, err := rt.session(ctx, name)
	if err != nil {
		return SessionStatus{}, err
	}
	return s.status(ctx)
}

// Send admits a message. reply is called once, after the commit. Messages that
// are sent in order are admitted in order.
func (rt *Runtime) Send(name string, m Message, reply func(Admitted, error)) {
	s, err := rt.session(rt.ctx, name)
	if err == nil && rt.isDraining() {
		err = errEnding()
	}
	if err != nil {
		reply(Admitted{}, err)
		return
	}
	lane := m.Lane
	if lane == "" {
		lane = klbr.MainLane
	}
	ev := engine.Admit{Lane: lane, Message: klbr.MessageAdmitted{
		Source: m.Source, SourceID: m.ID, Author: m.Author, Text: m.Text, Mode: klbr.LaneSteer,
	}}
	if m.Queue {
		ev.Message.Mode = klbr.LaneQueue
	}
	s.askKeyed(m.Source, m.ID, func(to engine.ReplyTo) engine.Event { ev.Reply = to; return ev },
		func(v any, err error) {
			a, _ := v.(engine.Admitted)
			reply(Admitted(a), err)
		})
}

// RunCell runs a person's cell. reply is called once, when it has begun.
func (rt *Runtime) RunCell(name string, c Cell, reply func(CellAccepted, error)) {
	s, err := rt.session(rt.ctx, name)
	if err == nil && rt.isDraining() {
		err = errEnding()
	}
	if err != nil {
		reply(CellAccepted{}, err)
		return
	}
	lane := c.Lane
	if lane == "" {
		lane = klbr.MainLane
	}
	ev := engine.PersonCell{Lane: lane, ID: c.ID, Code: c.Code, Private: c.Private}
	s.askKeyed(engine.PersonCells, c.ID, func(to engine.ReplyTo) engine.Event { ev.Reply = to; return ev },
		func(v any, err error) {
			switch v := v.(type) {
			case CellAccepted:
				reply(v, err)
			case engine.CellAccepted:
				reply(CellAccepted(v), err)
			default:
				reply(CellAccepted{}, err)
			}
		})
}

// StopTurn ends a turn, or what runs in a lane when turn is 0, and gives its
// number: 0 where it was a person's cell.
func (rt *Runtime) StopTurn(ctx context.Context, name string, turn int64, lane, by string) (int64, error) {
	if lane == "" {
		lane = klbr.MainLane
	}
	v, err := call[engine.TurnEnded](ctx, rt, name, func(to engine.ReplyTo) engine.Event {
		return engine.TurnStop{Turn: turn, Lane: lane, By: by, Reply: to}
	})
	return v.Turn, err
}

// Reset gives the session's kernel a new generation.
func (rt *Runtime) Reset(ctx context.Context, name, by string) (ResetResult, error) {
	v, err := call[engine.HeapReset](ctx, rt, name, func(to engine.ReplyTo) engine.Event {
		return engine.KernelReset{By: by, Reply: to}
	})
	return ResetResult(v), err
}

// Stop ends all that runs in a session and holds it.
func (rt *Runtime) Stop(ctx context.Context, name, by string) (SessionStatus, error) {
	return rt.operate(ctx, name, func(to engine.ReplyTo) engine.Event { return engine.SessionStop{By: by, Reply: to} })
}

// Resume ends a stop or a drain.
func (rt *Runtime) Resume(ctx context.Context, name, by string) (SessionStatus, error) {
	return rt.operate(ctx, name, func(to engine.ReplyTo) engine.Event { return engine.SessionResume{By: by, Reply: to} })
}

// DrainSession closes a session's admission.
func (rt *Runtime) DrainSession(ctx context.Context, name, by string) (SessionStatus, error) {
	return rt.operate(ctx, name, func(to engine.ReplyTo) engine.Event { return engine.SessionDrain{By: by, Reply: to} })
}

// OpenLane gives a lane, new or not, and whether it is new.
func (rt *Runtime) OpenLane(ctx context.Context, name, lane string, mode klbr.LaneMode) (LaneStatus, bool, error) {
	if err := klbr.CheckName("lane", lane); err != nil {
		return LaneStatus{}, false, err
	}
	v, err := call[engine.LaneOpened](ctx, rt, name, func(to engine.ReplyTo) engine.Event {
		return engine.LaneOpen{Lane: lane, Mode: mode, Reply: to}
	})
	return LaneStatus{Lane: v.Lane.Lane, Mode: v.Lane.Mode, Running: v.Lane.Running}, v.Opened, err
}

func (rt *Runtime) operate(ctx context.Context, name string, ev func(engine.ReplyTo) engine.Event) (SessionStatus, error) {
	if _, err := call[engine.Done](ctx, rt, name, ev); err != nil {
		return SessionStatus{}, err
	}
	return rt.Status(ctx, name)
}

// call puts an event and waits for its answer.
func call[T any](ctx context.Context, rt *Runtime, name string, ev func(engine.ReplyTo) engine.Event) (T, error) {
	type outcome struct {
		v   T
		err error
	}
	var zero T
	s, err := rt.session(ctx, name)
	if err != nil {
		return zero, err
	}
	done := make(chan outcome, 1)
	s.ask(ev, func(v any, err error) {
		t, _ := v.(T)
		done <- outcome{t, err}
	})
	select {
	case o := <-done:
		return o.v, o.err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// Page gives the records before a seq (0: the end), oldest first, and whether
// nothing is older.
func (rt *Runtime) Page(ctx context.Context, name string, lanes []string, before int64, limit int) ([]klbr.Record, bool, error) {
	if _, err := rt.session(ctx, name); err != nil {
		return nil, false, err
	}
	return rt.opt.Store.Page(ctx, name, lanes, before, limit)
}

// Turn gives a turn and its records, bodies in full.
func (rt *Runtime) Turn(ctx context.Context, name string, turn int64) (klbr.TurnRow, []klbr.Record, error) {
	row, err := rt.opt.Store.Turn(ctx, name, turn)
	if err != nil {
		return row, nil, err
	}
	rs, err := rt.opt.Store.TurnRecords(ctx, name, turn)
	return row, rs, err
}

// Effects lists a session's effects.
func (rt *Runtime) Effects(ctx context.Context, name string, openOnly bool) ([]klbr.EffectRow, error) {
	if _, err := rt.session(ctx, name); err != nil {
		return nil, err
	}
	return rt.opt.Store.Effects(ctx, name, openOnly)
}

// Subscribe gives a session's records after a cursor and then its live end.
func (rt *Runtime) Subscribe(ctx context.Context, name string, lanes []string, after Cursor) (*Subscription, error) {
	s, err := rt.session(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.feed.subscribe(lanes, after, rt.opt.Store.Incarnation())
}

func rowStatus(row klbr.SessionRow) SessionStatus {
	return SessionStatus{
		Session: row.Session, State: row.State, Seq: row.Seq, Workspace: row.Workspace, Release: row.Release,
		Epoch: row.Epoch, Probation: row.Probation, Kernel: KernelStatus{Generation: row.Kernel},
		Running: []TurnStatus{}, Queued: []QueuedMessage{}, Cells: []CellStatus{},
		Turns: row.Turns, OpenedAt: row.OpenedAt, ChangedAt: row.ChangedAt,
	}
}

func (s *session) status(ctx context.Context) (SessionStatus, error) {
	var out SessionStatus
	var queued []klbr.AdmissionRow
	var cells []klbr.CallRow
	err := s.query(ctx, func(st *engine.State) error {
		out = rowStatus(st.Session)
		out.Kernel.Running = s.kernel != nil && s.kernel.generation == st.Session.Kernel && s.kernel.up()
		snap := st.Snapshot()
		queued = snap.Admissions
		for _, c := range snap.Calls {
			if c.Kind == klbr.CallCell && c.Settled == 0 {
				cells = append(cells, c)
			}
		}
		for _, t := range snap.Turns {
			out.Running = append(out.Running, turnStatus(st, snap, t))
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	for _, c := range cells {
		r, err := s.rt.opt.Store.Record(ctx, s.name, c.Opened)
		if err != nil {
			return out, err
		}
		out.Cells = append(out.Cells, CellStatus{Cell: c.Number, Lane: c.Lane, Turn: c.Turn, Started: r.Time})
	}
	for _, q := range queued {
		m := QueuedMessage{Seq: q.Seq, Lane: q.Lane, Author: q.Author}
		if r, err := s.rt.opt.Store.Record(ctx, s.name, q.Seq); err == nil {
			if body, err := r.Decode(); err == nil {
				if a, ok := body.(*klbr.MessageAdmitted); ok {
					m.Text = a.Text
				}
			} else if r.Ref != nil {
				m.Text = r.Ref.Head
			}
		}
		out.Queued = append(out.Queued, m)
	}
	return out, nil
}

func turnStatus(st *engine.State, snap klbr.Snapshot, t klbr.TurnRow) TurnStatus {
	out := TurnStatus{Turn: t.Turn, Lane: t.Lane, Attempt: t.Attempt, Message: t.Message, Started: t.Started, State: "policy"}
	for _, c := range snap.Calls {
		if c.Turn != t.Turn || c.Settled != 0 {
			continue
		}
		switch c.Kind {
		case klbr.CallModel:
			out.State = "model"
		case klbr.CallCell:
			out.State, out.Cell = "cell", c.Number
		}
	}
	queued := slices.ContainsFunc(st.QueuedCells(), func(id engine.CallID) bool { return id.Turn == t.Turn })
	if c := st.OpenCell(); queued && c != nil {
		out.State = "waiting"
		out.WaitsFor = waitsFor(c)
	}
	return out
}

func waitsFor(c *klbr.CallRow) string {
	whose := "the person's"
	if c.Turn != 0 {
		whose = fmt.Sprintf("turn %d's", c.Turn)
	}
	return fmt.Sprintf("the kernel, which runs %s cell %d of lane %s", whose, c.Number, c.Lane)
}
