//! Extended reliable connections (annex A14): domains, whose target QPs receive into whichever of the domain's SRQs a
//! packet names.

mod connections;
mod serve;
mod srq;

pub(crate) use connections::XrcSource;
pub(crate) use serve::register;

use crate::Context;
use crate::adapter;
use crate::qp::{Qp, QpCap, QpInit};
use ferroce_mem::Pd;
use ferroce_parts::QpAttr;
use ferroce_queues::late::{self, Late};
use ferroce_queues::{Cq, Unacked};
use ferroce_types::{AsyncEvent, Error, Result, Users, invalid};
use ferroce_wire::Service;
use ferroce_xrc::{Domain, DomainFile, HandleOwner, Remote};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

/// An XRC domain (ibv_open_xrcd(3)): one of the handles by which this process holds it.
#[derive(Debug)]
pub struct Xrcd {
    context: Arc<Context>,
    domain: Arc<Domain>,
    users: Users,
}

impl Xrcd {
    /// Opens the domain that belongs to the file behind a descriptor, or a new one that belongs to none. `create`
    /// and `exclusive` are O_CREAT and O_EXCL.
    ///
    /// # Errors
    /// EBADF for a descriptor that isn't open; EAGAIN when the file has no domain and none is to be made; EINVAL when it
    /// has one and must have none. (These are the kernel's; the man page names none.)
    pub fn open(
        context: &Arc<Context>,
        file: Option<RawFd>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Self>> {
        let device = &context.device().info().name;
        let file = file.map(|fd| DomainFile::behind(device, fd)).transpose()?;
        let domain = adapter::domain(file.as_ref(), |found| match found {
            Some(_) if exclusive => invalid!("O_EXCL, and the file has an XRC domain"),
            Some(domain) => Ok(domain),
            None if file.is_some() && !create => {
                tracing::debug!("the file has no XRC domain, and O_CREAT isn't given");
                Err(Error::os("opening an XRC domain")(io::Error::from_raw_os_error(libc::EAGAIN)))
            }
            None => Ok(Arc::new(Domain { file: file.clone() })),
        })?;
        Ok(Arc::new(Self { context: context.clone(), domain, users: Users::default() }))
    }

    /// May this handle be closed (ibv_close_xrcd(3))?
    ///
    /// # Errors
    /// [`Error::Busy`] while an SRQ or a QP belongs to the domain by this handle.
    pub fn check_unused(&self) -> Result<()> {
        self.users.check_none("the XRC domain still has objects")
    }

    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn hold(&self) {
        self.users.hold();
    }

    pub(crate) fn release(&self) {
        self.users.release();
    }
}

/// The context that a target QP was created or opened in, with the user handle of that call. A target may have several.
#[derive(Debug)]
pub(crate) struct Opener {
    pub(crate) context: Arc<Context>,
    pub(crate) user_handle: usize,
    unacked_async: Unacked,
}

impl Opener {
    fn new(xrcd: &Xrcd, user_handle: usize) -> Arc<Self> {
        Arc::new(Self { context: xrcd.context.clone(), user_handle, unacked_async: Unacked::default() })
    }
}

impl HandleOwner for Opener {
    fn raise(&self, event: fn(usize) -> AsyncEvent) {
        self.context.raise(event(self.user_handle));
    }

    fn unread(&self) -> usize {
        self.context.async_events().count(|event| event.object() == Some(self.user_handle))
    }
}

/// A handle of a target QP: its creator's, or one from ibv_open_qp(3). The QP ends with its last handle, and with the
/// process that has created it.
#[derive(Debug)]
pub struct XrcTarget {
    qp: Arc<Qp>,
    xrcd: Arc<Xrcd>,
    opener: Arc<Opener>,
    /// The way to the QP when another process has created it; then `qp` has its number and nothing else.
    remote: Option<Arc<Remote<Qp>>>,
}

impl XrcTarget {
    /// A new target QP in RESET (IBV_QPT_XRC_RECV). `user_handle` comes back with its events.
    ///
    /// # Errors
    /// As [`Qp::create`].
    pub fn create(xrcd: &Arc<Xrcd>, user_handle: usize) -> Result<Self> {
        let (pd, init) = Self::parts(&xrcd.context)?;
        let qp = Qp::create_target(&pd, init, xrcd.domain.clone())?;
        Ok(Self::of(qp, xrcd, user_handle).unwrap_or_else(|_| unreachable!("a new QP isn't on its way out")))
    }

    /// A target has no queues and no protection domain: private ones, which the program can't reach, stand in for them.
    fn parts(context: &Arc<Context>) -> Result<(Arc<Pd>, QpInit)> {
        let pd = Pd::alloc(context)?;
        let cq = Cq::create(context, 1, None, 0)?;
        let cap =
            QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 };
        let init = QpInit {
            service: Service::Xrc,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap,
            sq_sig_all: false,
            user_handle: 0,
        };
        Ok((pd, init))
    }

    /// One more handle of the target QP with this number, of this process or of another one of the host. The QP ends
    /// with the process that has created it: then `IBV_EVENT_QP_FATAL` comes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the domain has none, or its process doesn't answer within a second.
    pub fn open(xrcd: &Arc<Xrcd>, qpn: u32, user_handle: usize) -> Result<Self> {
        let adapter = xrcd.context.adapter()?;
        if let Some(qp) = adapter.qp(qpn).filter(|qp| qp.is_target_of(&xrcd.domain)) {
            return Self::of(qp, xrcd, user_handle);
        }
        let opener = Opener::new(xrcd, user_handle);
        let remote = Remote::open((&adapter.xrc, &adapter.host), &xrcd.domain, qpn, opener.clone())?;
        let (pd, init) = Self::parts(&xrcd.context)?;
        let qp = Qp::create_proxy(&pd, init, xrcd.domain.clone(), qpn)?;
        xrcd.hold();
        Ok(Self { qp, xrcd: xrcd.clone(), opener, remote: Some(remote) })
    }

    fn of(qp: Arc<Qp>, xrcd: &Arc<Xrcd>, user_handle: usize) -> Result<Self> {
        let opener = Opener::new(xrcd, user_handle);
        qp.add_opener(&opener)?;
        xrcd.hold();
        Ok(Self { qp, xrcd: xrcd.clone(), opener, remote: None })
    }

    /// Present attributes (ibv_query_qp(3)). Of a QP whose process has ended the state is ERR, and nothing else is left.
    ///
    /// # Errors
    /// [`Error::Busy`] when another process has the QP and doesn't answer within a second.
    pub fn query(&self) -> Result<QpAttr> {
        match &self.remote {
            Some(remote) => remote.query(),
            None => self.qp.query(),
        }
    }

    /// Changes attributes and state (ibv_modify_qp(3)), for all handles.
    ///
    /// # Errors
    /// As [`Qp::modify`]; [`Error::Busy`] when another process has the QP and doesn't answer within a second: then nothing
    /// is changed, now or later. [`Error::Dead`] when that process has ended, or has begun with the change and doesn't
    /// end it within ten seconds: then the handle has ended, as with that process.
    pub fn modify(&self, attr: &QpAttr, bits: u32) -> Result<()> {
        match &self.remote {
            Some(remote) => remote.modify(attr, bits),
            None => self.qp.modify(attr, bits),
        }
    }

    /// The queue pair that all handles of this process share; of another process's one its number and sizes.
    #[must_use]
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// The queue pair, if this process has created it.
    #[must_use]
    pub fn own_qp(&self) -> Option<&Arc<Qp>> {
        self.remote.is_none().then_some(&self.qp)
    }

    /// Asynchronous events that this handle's owner has to acknowledge.
    #[must_use]
    pub fn unacked_async(&self) -> &Unacked {
        &self.opener.unacked_async
    }

    /// Gives the handle up (ibv_destroy_qp(3)); the last one takes the QP with it.
    ///
    /// # Errors
    /// As [`Qp::destroy`].
    pub fn close(&self) -> Result<()> {
        let last = match &self.remote {
            Some(remote) => {
                remote.close();
                true
            }
            None => self.qp.remove_opener(&self.opener),
        };
        self.opener.context.withdraw(self.opener.user_handle);
        self.opener.unacked_async.wait(|count| late::tell(Late::OfQp, count));
        if last {
            self.qp.destroy_target()?;
        }
        self.xrcd.release();
        Ok(())
    }
}
